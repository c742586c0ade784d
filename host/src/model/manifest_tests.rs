//! Manifests that are right, and those that are refused.

use super::*;

const PROVIDER: &str =
    "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {name: demo}\nspec: {plugin: {name: sandbox}}\n";

#[test]
fn a_file_of_several_documents_is_read_with_defaults() {
    let text = format!(
        "{PROVIDER}---\n---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: a, namespace: crawl}}\nspec: {{provider: demo}}\n"
    );
    let all = parse(&text).unwrap();
    assert_eq!(all.len(), 2);
    let Manifest::Proxy(proxy) = &all[1] else { panic!("{all:?}") };
    assert_eq!(proxy.spec, crate::model::proxy::ProxySpec::of_provider("demo"));
}

#[test]
fn a_file_holds_a_fleet() {
    let proxy = |n: usize| {
        format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: p{n}}}\nspec: {{provider: demo}}\n"
        )
    };
    assert_eq!(parse(&(0..5000).map(proxy).collect::<Vec<_>>().join("---\n")).unwrap().len(), 5000);
}

#[test]
fn bad_manifests_name_the_object_and_the_field() {
    let proxy = |spec: &str| {
        format!("apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: a}}\nspec: {spec}\n")
    };
    for (text, expected) in [
        (proxy("{provider: demo, prot: http}"), "/spec/prot: unknown field"),
        (proxy("{provider: demo, port: 0}"), "/spec/port"),
        (proxy("{provider: demo, protocol: ftp}"), "/spec/protocol"),
        (proxy("{}"), "provider"),
        (proxy("{provider: demo, maxAge: soon}"), "/spec/maxAge"),
        (proxy("{provider: demo, auth: {mode: secret}}"), "secretRef goes with mode: secret"),
        (proxy("{provider: [}"), "not valid YAML"),
        (proxy("{provider: demo}").replace("name: a", "name: a, namespace: ../b"), "/metadata/namespace: a name of"),
        (PROVIDER.replace("demo", "De.mo"), "/metadata/name"),
        (PROVIDER.replace("v1alpha1", "v9"), "is not served here"),
        (PROVIDER.replace("plugin: {name: sandbox}", "plugin: {name: s}, connections: {c: {}}"), "either ssh or http"),
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: '%%'}\n".into(), "not base64"),
    ] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n-- does not say --\n{expected}");
    }
}

#[test]
fn names_that_other_yaml_takes_for_booleans_are_names() {
    for name in ["y", "n", "on", "off", "yes", "no"] {
        let text = PROVIDER.replace("demo", name);
        assert!(matches!(&parse(&text).unwrap()[0], Manifest::Provider(p) if p.metadata.name.as_deref() == Some(name)));
    }
}

#[test]
fn a_secret_with_a_wrong_value_does_not_show_it() {
    let error = parse("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: [hunter2]}\n")
        .unwrap_err()
        .to_string();
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn deep_and_large_parameters_are_refused() {
    let deep = format!("{}1{}", "{a: ".repeat(40), "}".repeat(40));
    let large = format!("{{a: {:?}}}", "x".repeat(70_000));
    for (parameters, expected) in [(deep, "nested deeper"), (large, "larger than")] {
        let text = format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: a}}\nspec: {{provider: p, parameters: {parameters}}}\n"
        );
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
