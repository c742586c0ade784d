//! The cases. Each is named after what must hold, carries the rule's text, and looks at that rule alone.

mod creating;
mod deleting;
mod describing;
mod failing;
mod listing;
mod observing;
mod placing;
mod telling;

use futures::future::BoxFuture;

use super::Case;
use super::kit::{Kit, Step};

/// Runs a case.
pub(super) type Run = for<'a> fn(&'a Kit) -> BoxFuture<'a, Step>;

macro_rules! cases {
    ($($name:literal $run:path: $rule:literal)*) => {
        [$(Case { name: $name, rule: $rule, run: |kit| Box::pin($run(kit)) }),*]
    };
}

/// In the order in which they run.
pub(super) static ALL: &[Case] = &cases! {
    "describe-pure" describing::describe_pure:
        "describe is pure: it does no I/O and answers the same each time."
    "describe-names" describing::describe_names:
        "The description names itself by its file, its version as semver, and its connections by DNS label and kind."
    "describe-schemas" describing::describe_schemas:
        "The schemas accept all that the plugin reads and nothing else."
    "validate-pure" describing::validate_pure:
        "validate is pure: no I/O, no clock, no random, the same answer each time."
    "validate-accepts" describing::validate_accepts:
        "What the operator accepts is created: validate takes the config and the request that the other cases use."
    "validate-every-field" describing::validate_every_field:
        "validate names every wrong field at once, each with its pointer and what is accepted."
    "place-reads-only" placing::place_reads_only:
        "place reads only."
    "place-names-the-backend" placing::place_names_the_backend:
        "A placement names the place and the backend's own identity, as PLACE@IDENTITY."
    "place-respects-avoid" placing::place_respects_avoid:
        "A place in avoid is not answered; none left is exhausted."
    "create-reaches-running" creating::reaches_running:
        "create drives on until the instance runs; a running instance has an address."
    "create-repeated" creating::repeated:
        "create is idempotent on (owner, incarnation): repeated, it converges on one instance."
    "create-twice-at-once" creating::twice_at_once:
        "create is idempotent on (owner, incarnation): twice at once, it converges on one instance."
    "create-answer-lost" creating::answer_lost:
        "A change that was sent and whose answer was lost is unknown-outcome; create again converges on one instance."
    "create-tags-first" creating::tags_first:
        "The owner tags are part of the request that makes the first artefact."
    "create-at-its-placement" creating::at_its_placement:
        "create acts at identity.placement and nowhere else."
    "create-foreign" creating::foreign:
        "A name taken by something without our tags is foreign, and nothing is touched."
    "create-does-not-wait" creating::does_not_wait:
        "No call waits for a machine. What takes long is started and reported as creating."
    "names-from-identity" creating::names_from_identity:
        "Names, UUIDs and request ids follow from installation, proxy UID, incarnation and attempt, never from random bytes."
    "incarnations-differ" creating::incarnations_differ:
        "The incarnation enters names and UUIDs: two incarnations, and two proxies, are different instances."
    "get-absent-before-create" observing::absent_before_create:
        "get answers absent when the look-up succeeds and finds nothing that delete would remove."
    "get-changes-nothing" observing::changes_nothing:
        "get changes nothing."
    "get-other-backend" observing::other_backend:
        "Another backend than the placement names is config-missing, never absent."
    "get-foreign" observing::foreign:
        "What carries somebody else's tags is foreign: get does not show it as ours."
    "get-after-config-change" observing::after_config_change:
        "get works when the config has changed since, as long as the placement can be reached."
    "continuation-lost" observing::continuation_lost:
        "continuation, provider-id and backend-id are shortcuts: without them the answer is the same."
    "unknown-state" observing::unknown_state:
        "A state that the backend does not explain is unknown with what it said, never running, failed or absent."
    "leftovers-are-present" observing::leftovers_are_present:
        "absent only when delete would find nothing more; leftovers without an instance are present."
    "delete-until-gone" deleting::until_gone:
        "gone means every artefact, seen gone; until then in-progress."
    "delete-twice" deleting::twice:
        "delete is idempotent: what is gone already is gone, and two at once do no harm."
    "delete-while-creating" deleting::while_creating:
        "An instance that is still being made is deleted as any other."
    "delete-answer-lost" deleting::answer_lost:
        "A delete whose answer was lost is unknown-outcome or in-progress, never gone; delete again ends it."
    "delete-foreign" deleting::foreign:
        "delete refuses what is not ours (foreign), by tags and not by name."
    "delete-other-backend" deleting::other_backend:
        "delete acts at its placement: another backend there is config-missing, never gone."
    "delete-identity-only" deleting::identity_only:
        "delete needs the identity only: it works when the catalogue in the config has changed since."
    "list-complete" listing::complete:
        "list-instances is complete over all pages; placement, owner and incarnation come from what was found."
    "list-own-installation" listing::own_installation:
        "list-instances shows instances of this installation only, and another installation's are never touched."
    "list-whole-or-error" listing::whole_or_error:
        "A listing of which a part could not be had is an error."
    "backend-unreachable" failing::unreachable:
        "I could not ask is an error (transient), never absent, gone or an empty list."
    "backend-refuses" failing::refuses:
        "401 is unauthorized, 429 rate-limited with Retry-After, 503 transient; none is ever absent, gone or an empty list."
    "connection-missing" failing::connection_missing:
        "What the Provider does not grant is config-missing, never read as absent."
    "check-findings" telling::findings:
        "check answers one finding per target, with no more than one request each; target is a placement up to its first @."
    "messages-stable" telling::messages_stable:
        "Messages carry no time stamp or counter: asked twice about the same, the answer is the same."
    "poll-after-bounds" telling::poll_after_bounds:
        "poll-after-ms lies between 10 ms and 10 minutes: what the operator keeps to."
    "deadline-kept" telling::deadline_kept:
        "A call ends by itself well within its deadline (limits.callTimeout)."
    "random-differs" telling::random_differs:
        "Every call runs in a fresh instance: what two of them draw at random differs."
    "secrets-nowhere" telling::nothing_secret:
        "No answer and no log line carries a login or a credential."
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_rules_are_sentences() {
        assert_eq!(ALL.iter().map(|case| case.name).collect::<BTreeSet<_>>().len(), ALL.len());
        for case in ALL {
            assert!(case.rule.ends_with('.'), "{}", case.name);
            assert!(case.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", case.name);
        }
    }
}
