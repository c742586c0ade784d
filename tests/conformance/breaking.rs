//! A provider that breaks one rule fails the case named for it. The guest is the provider that `plugin new` writes, with a
//! switch (`tests/guests/build/rules.rs`).

use std::collections::BTreeSet;

use proxy_operator::conformance;

use crate::subject::{failed, not_applicable, subject};

/// The backend of the template, whose machines take longer to boot: a delete is to meet one that does.
fn backend() -> String {
    let path = proxy_operator_tests::root().join("plugins/template/tests/backend.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains("made: [booting, running]"), "{text}");
    text.replace("made: [booting, running]", "made: [booting, booting, booting, running]")
}

fn documents(broken: &str) -> String {
    format!(
        "apiVersion: v1
kind: Secret
metadata: {{name: api, labels: {{crawl.example.com/provider-secret: 'true'}}}}
stringData: {{token: token-of-the-tests}}
---
apiVersion: crawl.example.com/v1alpha1
kind: Provider
metadata: {{name: broken}}
spec:
  plugin: {{name: rulebreaker}}
  connections:
    api: {{http: {{baseUrl: 'https://api.example', auth: {{bearer: {{secretRef: {{name: api, key: token}}}}}}}}}}
  config: {{regions: [north, south], sizes: {{small: plan-1, break: {broken}}}}}
  limits: {{callTimeout: 2s}}
"
    )
}

/// Cases that look at the same rule from another side, and see it broken too.
fn beside(case: &str) -> &'static [&'static str] {
    match case {
        // What is there without tags is taken for somebody else's, and the late tags are written over anybody's.
        "create-tags-first" => &["leftovers-are-present", "create-foreign"],
        // Two answers about one instance that differ are taken for two instances, wherever they are compared.
        "create-repeated" => &["create-twice-at-once", "create-answer-lost"],
        // What a placement does not name cannot be told from another one; and the switch is gone with the config.
        "place-names-the-backend" => &["get-other-backend", "delete-other-backend", "delete-identity-only"],
        // These call create twice without telling the second call of the first one's answer, as two at once do.
        "create-twice-at-once" => {
            &["create-answer-lost", "names-from-identity", "poll-after-bounds", "deadline-kept", "secrets-nowhere"]
        }
        "get-absent-before-create" => &["place-reads-only"],
        // What is called gone and is not stays behind, whoever looks.
        "delete-until-gone" => &["leftovers-are-present", "delete-while-creating", "delete-identity-only"],
        "delete-while-creating" => &["leftovers-are-present"],
        "delete-twice" => &["leftovers-are-present"],
        _ => &[],
    }
}

async fn fails_the_case_named_for_it(case: &str) {
    let report = conformance::run(subject(&documents(case), Some(&backend())).await, |_| true).await.unwrap();
    let failed = failed(&report);
    assert!(failed.iter().any(|(name, _)| *name == case), "{case} is broken, and failed are: {failed:?}");
    let others: Vec<_> = failed.iter().filter(|(name, _)| *name != case && !beside(case).contains(name)).collect();
    assert!(others.is_empty(), "{case} is broken, and failed are: {others:?}");
}

macro_rules! breaking {
    ($($test:ident)*) => {
        /// Names of the cases that some guest breaks.
        const BROKEN: &[&str] = &[$(stringify!($test)),*];
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            fails_the_case_named_for_it(&stringify!($test).replace('_', "-")).await;
        })*
    };
}

breaking! {
    validate_pure
    validate_accepts
    validate_every_field
    place_reads_only
    place_names_the_backend
    place_respects_avoid
    create_reaches_running
    create_repeated
    create_twice_at_once
    create_answer_lost
    create_tags_first
    create_at_its_placement
    create_foreign
    create_does_not_wait
    names_from_identity
    incarnations_differ
    get_absent_before_create
    get_changes_nothing
    get_other_backend
    get_foreign
    get_after_config_change
    continuation_lost
    unknown_state
    leftovers_are_present
    delete_until_gone
    delete_twice
    delete_while_creating
    delete_answer_lost
    delete_foreign
    delete_other_backend
    delete_identity_only
    list_complete
    list_own_installation
    list_whole_or_error
    backend_unreachable
    backend_refuses
    connection_missing
    check_findings
    messages_stable
    poll_after_bounds
    secrets_nowhere
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_kept() {
    // Each of its creates takes 1.2 s, so not all cases are run.
    let chosen = ["describe-pure", "get-absent-before-create", "create-repeated", "deadline-kept"];
    let subject = subject(&documents("deadline-kept"), Some(&backend())).await;
    let report = conformance::run(subject, |case| chosen.contains(&case.name)).await.unwrap();
    assert_eq!(failed(&report).iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["deadline-kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_is_looked_at_by_itself() {
    let provider = "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: odd}\n";
    let subject = subject(&format!("{provider}spec: {{plugin: {{name: odd-describe}}}}\n"), None).await;
    let report = conformance::run(subject, |case| case.name.starts_with("describe-")).await.unwrap();
    let names: Vec<_> = failed(&report).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["describe-pure", "describe-names", "describe-schemas"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nothing_broken_every_case_passes() {
    let report = conformance::run(subject(&documents("nothing"), Some(&backend())).await, |_| true).await.unwrap();
    assert_eq!(failed(&report), []);
    assert_eq!(not_applicable(&report), ["random-differs"]);
}

#[test]
fn every_case_is_broken_by_a_guest() {
    // By those above with a test of their own. What is drawn at random the host draws, and no guest can break that.
    let others = ["describe-pure", "describe-names", "describe-schemas", "deadline-kept", "random-differs"];
    let broken: BTreeSet<_> = BROKEN.iter().map(|case| case.replace('_', "-")).chain(others.map(Into::into)).collect();
    let known: BTreeSet<_> = conformance::all().iter().map(|case| case.name.to_owned()).collect();
    assert_eq!(broken, known);
}
