//! The plugin `sandbox` against the sandbox cloud: a life from place to gone.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proxy_operator::model::error::ErrorKind;
use proxy_operator::model::instance::{Deletion, Instance, Presence, State};
use proxy_operator::plugin::handle::Handle;
use proxy_operator::sandbox_cloud::{self, Options};
use proxy_operator_tests::plugins::server::{Reply, Server};
use proxy_operator_tests::plugins::{Setup, eventually, identity, login, present, request, soon};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const TOKEN: &str = "token-of-the-cloud";

/// A sandbox cloud in this process, and the plugin as one Provider uses it.
pub struct Cloud {
    pub address: SocketAddr,
    pub handle: Handle,
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
}

impl Cloud {
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), 100).await
    }

    pub async fn start_at(listen: SocketAddr, capacity: usize) -> Self {
        let mut options = Options::new(listen, "127.0.0.1", TOKEN);
        options.capacity_per_zone = capacity;
        let cloud = sandbox_cloud::bind(options).await.expect("a port");
        let (address, stop) = (cloud.local_addr(), CancellationToken::new());
        let serving = tokio::spawn(cloud.serve(stop.clone()));
        let setup = Setup::new().bearer("cloud", address, TOKEN).config(json!({"bootMs": 20}));
        Self { address, handle: setup.handle("sandbox").await, stop, serving: Some(serving) }
    }

    /// Ends it: nobody listens at its address any more.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        self.serving.take().expect("it runs").await.expect("no panic");
    }

    /// Asks the cloud's own API.
    pub async fn api(&self, method: reqwest::Method, path: &str, body: Value) -> reqwest::Response {
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let url = format!("http://{}{path}", self.address);
        let asked = client.request(method, url).bearer_auth(TOKEN).json(&body).send().await;
        asked.expect("the cloud answers").error_for_status().expect("the cloud agrees")
    }

    pub async fn faults(&self, faults: Value) {
        self.api(reqwest::Method::PUT, "/v1/faults", faults).await;
    }

    /// Places and makes an instance, and waits until it runs.
    pub async fn running(&self, name: &str) -> Instance {
        let mut wanted = request(name, "");
        wanted.login = Some(login("pxUser", "pass-word-5c2e"));
        wanted.identity.placement = self.handle.place(&wanted, &[]).await.expect("there is room");
        self.handle.create(&wanted).await.expect("it is made");
        self.until_running(name, &wanted.identity.placement).await
    }

    pub async fn until_running(&self, name: &str, placement: &str) -> Instance {
        let asked = identity(name, placement);
        soon("an instance's boot", async {
            loop {
                let found = present(self.handle.get(&asked).await.expect("the cloud answers"));
                if found.state == State::Running {
                    return found;
                }
                assert_eq!(found.state, State::Creating);
                tokio::time::sleep(found.poll_after.expect("a hint while it boots")).await;
            }
        })
        .await
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn an_instance_lives_from_place_to_gone() {
    let cloud = Cloud::start().await;
    let made = cloud.running("a").await;
    let asked = identity("a", &made.placement);
    assert_eq!(made.owner.as_ref(), Some(&asked.owner));
    assert_eq!((made.incarnation, made.addresses.len()), (Some(0), 1));
    let port = made.port.expect("a running proxy has a port");
    tokio::net::TcpStream::connect((made.addresses[0].host.as_str(), port)).await.expect("a real proxy listens");
    assert_eq!(cloud.handle.list().await, Ok(vec![made.clone()]));

    let mut states = vec![];
    soon("the deletion", async {
        loop {
            let deletion = cloud.handle.delete(&asked).await.expect("the cloud answers");
            let gone = deletion == Deletion::Gone;
            states.push(deletion);
            if gone {
                break;
            }
        }
    })
    .await;
    assert!(matches!(states[0], Deletion::InProgress { .. }), "gone is what was seen gone");
    assert_eq!(cloud.handle.get(&asked).await, Ok(Presence::Absent));
    assert_eq!(cloud.handle.delete(&asked).await, Ok(Deletion::Gone), "what is gone already is gone");
    assert_eq!(cloud.handle.list().await, Ok(vec![]));
}

#[tokio::test]
async fn a_create_that_is_repeated_or_doubled_makes_one_instance() {
    let cloud = Cloud::start().await;
    let mut wanted = request("a", "");
    wanted.identity.placement = cloud.handle.place(&wanted, &[]).await.expect("there is room");
    let (a, b) = tokio::join!(cloud.handle.create(&wanted), cloud.handle.create(&wanted));
    let third = cloud.handle.create(&wanted).await;
    let ids: BTreeSet<_> = [a, b, third].map(|made| made.expect("it is made").backend_id.expect("an id")).into();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(cloud.handle.list().await.map(|all| all.len()), Ok(1));
}

#[tokio::test]
async fn a_listing_is_whole_over_several_pages() {
    let cloud = Cloud::start_at("127.0.0.1:0".parse().expect("an address"), 300).await;
    let checked = cloud.handle.place(&request("probe", ""), &[]).await.expect("there is room");
    let id = checked.split_once('@').expect("ZONE@CLOUDID").1;
    let mut wanted = BTreeSet::new();
    for number in 0..230 {
        let name = format!("p{number}");
        let zone = ["zone-a", "zone-b"][number % 2];
        // Not by the plugin, which would take five times as long.
        let body = json!({"owner": {"installation": "installation-1", "proxyUid": format!("uid-{name}"),
            "namespace": "crawlers", "name": name}, "incarnation": 0, "specHash": "h", "protocol": "http",
            "allowTargets": [], "bootMs": 60_000});
        cloud.api(reqwest::Method::PUT, &format!("/v1/zones/{zone}/instances/{name}"), body).await;
        wanted.insert((name, format!("{zone}@{id}")));
    }
    let other = json!({"owner": {"installation": "another", "proxyUid": "u", "namespace": "n", "name": "x"},
        "incarnation": 0, "specHash": "h", "protocol": "http", "allowTargets": []});
    cloud.api(reqwest::Method::PUT, "/v1/zones/zone-a/instances/x", other).await;
    let all = cloud.handle.list().await.expect("the cloud answers");
    let found: BTreeSet<_> =
        all.into_iter().map(|found| (found.owner.expect("an owner").name, found.placement)).collect();
    assert_eq!(found, wanted, "every one of this installation, none of another");
}

#[tokio::test]
async fn a_listing_without_end_is_an_error() {
    let server = Server::start(async |asked| {
        let page = asked.target.rsplit_once("cursor=").and_then(|(_, page)| page.parse::<u64>().ok()).unwrap_or(0);
        Reply::json(200, json!({"instances": [], "next": (page + 1).to_string()}))
    })
    .await;
    let handle = Setup::new().http("cloud", server.address).handle("sandbox").await;
    let error = soon("a listing", handle.list()).await.expect_err("it has no end");
    assert_eq!(error.kind, ErrorKind::Internal);
    assert!(error.message.contains("pages"), "{error}");

    let server = Server::start(async |_| Reply::json(200, json!({"instances": [], "next": "again"}))).await;
    let handle = Setup::new().http("cloud", server.address).handle("sandbox").await;
    let error = soon("a listing", handle.list()).await.expect_err("it goes in circles");
    assert!(error.message.contains("the same page token twice"), "{error}");
}

#[tokio::test]
async fn an_instance_of_somebody_else_is_foreign_and_stays() {
    let cloud = Cloud::start().await;
    let made = cloud.running("a").await;
    let name = made.provider_id.rsplit('/').next().expect("a name").to_owned();
    let zone = made.placement.split_once('@').expect("ZONE@CLOUDID").0;
    // It vanishes, and somebody takes its name.
    cloud.faults(json!([{"kind": "vanish"}])).await;
    let other = json!({"owner": {"installation": "another", "proxyUid": "u", "namespace": "n", "name": "x"},
        "incarnation": 0, "specHash": "h", "protocol": "http", "allowTargets": []});
    cloud.api(reqwest::Method::PUT, &format!("/v1/zones/{zone}/instances/{name}"), other).await;
    let wanted = request("a", &made.placement);
    for error in [
        cloud.handle.get(&wanted.identity).await.expect_err("it is not ours"),
        cloud.handle.delete(&wanted.identity).await.expect_err("it is not ours"),
        cloud.handle.create(&wanted).await.expect_err("it is not ours"),
    ] {
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Foreign, "ForeignInstance"), "{error}");
    }
    assert_eq!(cloud.handle.list().await, Ok(vec![]));
    let there = cloud.api(reqwest::Method::GET, &format!("/v1/zones/{zone}/instances/{name}"), json!({})).await;
    assert_eq!(there.json::<Value>().await.expect("JSON")["owner"]["name"], "x", "it was not touched");
}

#[tokio::test]
async fn a_cloud_started_anew_is_another_backend_and_nothing_is_absent_there() {
    let mut old = Cloud::start().await;
    let made = old.running("a").await;
    old.stop().await;
    let new = Cloud::start_at(old.address, 100).await;
    let wanted = request("a", &made.placement);
    for error in [
        new.handle.get(&wanted.identity).await.expect_err("another cloud"),
        new.handle.delete(&wanted.identity).await.expect_err("another cloud"),
        new.handle.create(&wanted).await.expect_err("another cloud"),
    ] {
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "BackendChanged"), "{error}");
    }
    assert_eq!(new.handle.list().await, Ok(vec![]), "the new cloud got nothing of the old one's");
    let place = new.handle.place(&request("b", ""), &[]).await.expect("it is a good cloud");
    assert_ne!(place.split_once('@').map(|p| p.1), made.placement.split_once('@').map(|p| p.1));
}

#[tokio::test]
async fn a_stopped_instance_is_started_by_create() {
    let cloud = Cloud::start().await;
    let made = cloud.running("a").await;
    let name = made.provider_id.rsplit('/').next().expect("a name");
    let zone = made.placement.split_once('@').expect("ZONE@CLOUDID").0;
    cloud.api(reqwest::Method::POST, &format!("/v1/zones/{zone}/instances/{name}/stop"), json!({})).await;
    let asked = identity("a", &made.placement);
    assert_eq!(present(cloud.handle.get(&asked).await.expect("the cloud answers")).state, State::Stopped);
    cloud.handle.create(&request("a", &made.placement)).await.expect("it is started");
    assert_eq!(cloud.until_running("a", &made.placement).await.backend_id, made.backend_id);
}

#[tokio::test]
async fn zones_are_findings_and_full_ones_are_avoided() {
    let cloud = Cloud::start_at("127.0.0.1:0".parse().expect("an address"), 1).await;
    let findings = cloud.handle.check().await.expect("the cloud answers");
    assert_eq!(
        findings.iter().map(|f| (f.target.as_str(), f.healthy)).collect::<Vec<_>>(),
        [("zone-a", true), ("zone-b", true)]
    );
    let (a, b) = (cloud.running("a").await, cloud.running("b").await);
    assert_ne!(a.placement, b.placement, "each zone holds one");
    let error = cloud.handle.place(&request("c", ""), &[]).await.expect_err("both are full");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Exhausted, "NoZone"), "{error}");
    let findings = cloud.handle.check().await.expect("the cloud answers");
    assert!(findings.iter().all(|finding| !finding.healthy && finding.reason == "ZoneFull"), "{findings:?}");
    eventually("a zone is free again", async || {
        cloud.handle.delete(&identity("a", &a.placement)).await == Ok(Deletion::Gone)
    })
    .await;
    assert_eq!(cloud.handle.place(&request("c", ""), &[]).await, Ok(a.placement));
}
