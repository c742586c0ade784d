//! The provider `static`: proxies that exist already, each lent to one Proxy alone.

use proxy_operator_tests::lab::{Lab, is_ready, proxy_of, secret, text, wish};

#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_never_share_an_entry_and_logins_come_from_secrets() {
    let lab = Lab::without_provider().await;
    let (_one, first) = lab.forward_proxy("one", "ann:first-password");
    let (_two, second) = lab.forward_proxy("two", "bob:second-password");
    lab.put_secret("logins.yaml", &secret("logins", &[("one", "ann:first-password"), ("two", "bob:second-password")]));
    lab.put(
        "provider.yaml",
        &format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Provider\nmetadata: {{name: fixed}}\nspec:\n  plugin: {{name: static}}\n  secrets:\n    one: {{secretRef: {{name: logins, key: one}}}}\n    two: {{secretRef: {{name: logins, key: two}}}}\n  config:\n    proxies:\n    - {{name: one, host: 127.0.0.1, port: {first}, loginSecret: one}}\n    - {{name: two, host: 127.0.0.1, port: {second}, loginSecret: two}}\n"
        ),
    );
    for name in ["one", "two", "three"] {
        lab.put(&format!("{name}.yaml"), &proxy_of("fixed", name, ""));
    }
    // Two entries, three Proxies: one has to wait, and says for what.
    let proxies = lab
        .wait("two are ready and one waits", async |lab| {
            let all = lab.proxies().await;
            let waiting = all
                .iter()
                .filter(|p| proxy_operator_tests::lab::condition_of(p, "Ready").is_some_and(|c| c.reason == "NoEntry"));
            (all.iter().filter(|p| is_ready(p)).count() == 2 && waiting.count() == 1).then_some(all)
        })
        .await;
    let mut places: Vec<_> =
        proxies.iter().filter_map(|p| p.status.as_ref()?.instance.as_ref()?.placement.clone()).collect();
    places.sort();
    assert_eq!(places, [format!("one@127.0.0.1:{first}"), format!("two@127.0.0.1:{second}")]);

    // The lease's URL carries the entry's own login.
    for _ in 0..2 {
        let lease = lab.lease(wish(60)).await;
        let expected =
            if text(&lease, "server").ends_with(&first.to_string()) { "first-password" } else { "second-password" };
        assert_eq!(text(&lease, "password"), expected);
        assert!(lab.fetch_through(&text(&lease, "url")).await.contains("Your request came from"));
    }
    assert!(!lab.operator().log().contains("first-password"));
    let shown = serde_json::to_string(&lab.proxies().await).unwrap();
    assert!(!shown.contains("first-password") && !shown.contains("second-password"));
}
