//! A list of proxies that exist becomes manifests, and they serve.

use proxy_operator_tests::lab::{Lab, text, wish};

use crate::kit::ends;

#[tokio::test(flavor = "multi_thread")]
async fn imported_proxies_are_lent_with_the_logins_of_the_list() {
    let lab = Lab::without_provider().await;
    let (_one, first) = lab.forward_proxy("one", "ann:first-password");
    let (_two, second) = lab.forward_proxy("two", "bob:second:password");
    let list = lab.path("bought.txt");
    let lines =
        format!("# bought\n127.0.0.1:{first}:ann:first-password\n\nhttp://bob:second%3Apassword@127.0.0.1:{second}\n");
    std::fs::write(&list, lines).unwrap();
    let (list, manifests) = (list.display().to_string(), lab.path("manifests").display().to_string());
    let import = ["import", &list, "--provider", "bought", "-o", &manifests];
    ends(0, &import);
    let names: Vec<String> = lab
        .wait("both are there", async |lab| {
            let all = lab.proxies().await;
            (all.len() == 2).then(|| all.into_iter().filter_map(|p| p.metadata.name).collect())
        })
        .await;
    lab.wait_ready(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for _ in 0..2 {
        let lease = lab.lease(wish(60)).await;
        let is_first = text(&lease, "server").ends_with(&first.to_string());
        assert_eq!(text(&lease, "password"), if is_first { "first-password" } else { "second:password" });
        assert!(lab.fetch_through(&text(&lease, "url")).await.contains("Your request came from"));
    }
    // What is there is not written over.
    let (_, error) = ends(1, &import);
    assert!(error.contains("bought") && error.contains("is there already"), "{error}");
    assert!(!error.contains("password"), "{error}");
}

#[test]
fn a_wrong_list_is_refused_by_line_and_tells_no_password() {
    let dir = tempfile::tempdir().unwrap();
    for (lines, says) in [
        ("10.0.0.1:3128\n10.0.0.2:port:ann:hunter22\n", "line 2"),
        ("10.0.0.1:3128:ann:hunter22\n10.0.0.1:3128:ann:hunter22\n", "line 2"),
        ("ftp://ann:hunter22@10.0.0.1:21\n", "line 1"),
        ("host,password\n10.0.0.1,hunter22\n", "line 2"),
        ("", "it holds no proxy"),
    ] {
        let list = dir.path().join("list");
        std::fs::write(&list, lines).unwrap();
        let (out, error) = ends(1, &["import", &list.display().to_string()]);
        assert!(error.contains(says), "{lines:?}: {error}");
        assert!(out.is_empty() && !error.contains("hunter22"), "{error}");
    }
}
