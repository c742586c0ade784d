//! Requests to this cluster's API server as a service account, by TokenRequest.

use std::sync::Arc;

use kube::config::{KubeConfigOptions, Kubeconfig};
use proxy_operator::model::clock::SystemClock;
use proxy_operator::model::mandate::Mandate;
use proxy_operator::plugin::grants::{Cluster as _, Secrets};
use proxy_operator::store::kubernetes::KubeStore;
use proxy_operator_tests::apiserver::ApiServer;
use proxy_operator_tests::plugins::{Setup, identity, loaded, present, soon};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

const NAMESPACE: &str = "proxy-operator";

/// The store, which trusts the API server's own authority alone; as its administrator, or as another user.
async fn store(api: &ApiServer, user: Option<&str>) -> Arc<KubeStore> {
    let kubeconfig = Kubeconfig::read_from(api.kubeconfig()).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.accept_invalid_certs = false;
    config.auth_info.impersonate = user.map(Into::into);
    let pem = api.certificates();
    config.root_cert = Some(CertificateDer::pem_slice_iter(pem.as_bytes()).map(|der| der.unwrap().to_vec()).collect());
    KubeStore::connect(config, NAMESPACE, None, vec![], Arc::new(SystemClock::default()), Arc::new(Mandate::always()))
        .await
        .unwrap()
}

fn connection(account: &str) -> Value {
    json!({"http": {"auth": {"serviceAccount": {"name": account}}, "permit": ["loopback"]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_the_api_server_comes_from_the_named_account() {
    let Some(api) = ApiServer::start() else { return };
    api.apply_crds();
    api.run(&["create", "namespace", NAMESPACE], None);
    api.run(&["create", "serviceaccount", "proxy-pods", "-n", NAMESPACE], None);
    api.run(&["create", "role", "pods", "--verb=list", "--resource=pods", "-n", NAMESPACE], None);
    let binding = format!("--serviceaccount={NAMESPACE}:proxy-pods");
    api.run(&["create", "rolebinding", "pods", "--role=pods", &binding, "-n", NAMESPACE], None);
    let setup = || Setup::new().connection("cluster", connection("proxy-pods"));
    let store = store(&api, None).await;
    let fetch = async |path: &str, method: &str| -> Value {
        let setup = setup().config(json!({"http": {"connection": "cluster", "path": path, "method": method}}));
        let handle = setup.bind_to(loaded("fetch").await, store.clone());
        soon("a probe", handle.grants().probe()).await.unwrap();
        let found = soon("a request", handle.get(&identity("a", "here"))).await.unwrap();
        let told = present(found).message.unwrap();
        json!({"status": told.contains("\"status\":200"), "told": told})
    };
    let allowed = fetch(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), "GET").await;
    assert_eq!(allowed["status"], true, "{allowed}");
    // Not as the operator itself, which may do all of this.
    for (path, method) in [("/api/v1/namespaces/default/pods", "GET"), ("/api/v1/namespaces/default/secrets", "GET")] {
        let refused = fetch(path, method).await["told"].as_str().unwrap().to_owned();
        assert!(refused.contains(&format!("system:serviceaccount:{NAMESPACE}:proxy-pods")), "{refused}");
    }
    // For an hour, and for this cluster's own audience.
    let token = store.token("proxy-pods").await.unwrap();
    assert_eq!(token.lifetime.as_secs(), 3600);
    let missing =
        Setup::new().connection("cluster", connection("nobody")).config(json!({"http": {"connection": "cluster"}}));
    let handle = missing.bind_to(loaded("fetch").await, store.clone());
    let error = soon("a probe", handle.grants().probe()).await.unwrap_err().to_string();
    let remedy = format!("kubectl create serviceaccount nobody -n {NAMESPACE}");
    assert!(error.contains(&remedy), "{error}");
    let error = soon("a request", handle.get(&identity("a", "here"))).await.unwrap_err();
    assert!(error.reason == "CredentialMissing" && error.message.contains(&remedy), "{error}");
    // The account came: the next request has its token.
    api.run(&["create", "serviceaccount", "nobody", "-n", NAMESPACE], None);
    soon("a probe", handle.grants().probe()).await.unwrap();
    assert!(store.cluster().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_may_ask_for_no_token_says_what_to_grant() {
    let Some(api) = ApiServer::start() else { return };
    api.apply_crds();
    api.run(&["create", "namespace", NAMESPACE], None);
    api.run(&["create", "serviceaccount", "proxy-pods", "-n", NAMESPACE], None);
    api.run(&["create", "clusterrole", "reader", "--verb=get,list,watch", "--resource=*.*"], None);
    api.run(&["create", "clusterrolebinding", "reader", "--clusterrole=reader", "--user=operator"], None);
    // Makes the operator's own key, which a reader may not.
    drop(store(&api, None).await);
    let store = store(&api, Some("operator")).await;
    let refused = store.token("proxy-pods").await.expect_err("it may not").to_string();
    let advice = refused.split("kubectl ").nth(1).and_then(|rest| rest.split(", and bind").next()).expect("an advice");
    let advice: Vec<&str> = advice.split_whitespace().collect();
    api.run(&advice, None);
    let role = format!("--role={}", advice[2]);
    api.run(&["create", "rolebinding", "tokens", &role, "--user=operator", "-n", NAMESPACE], None);
    store.token("proxy-pods").await.unwrap_or_else(|e| panic!("what {advice:?} grants is not enough: {e}"));
}
