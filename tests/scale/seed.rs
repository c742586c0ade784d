//! Ten thousand Proxies that have been Ready for long, within seconds: what an operator made of a few of them, again and
//! again under other names. The machines come from the clouds' API, and the objects go where the API server keeps them.

use std::collections::HashMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, stream};
use proxy_operator::model::login::LoginKey;
use proxy_operator_tests::apiserver::ApiServer;
use proxy_operator_tests::backend::CloudApi;
use proxy_operator_tests::kube_api::{GROUP, KubeApi};
use proxy_operator_tests::plugins::eventually;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Requests at once.
const AT_ONCE: usize = 32;
/// Objects of one write; etcd takes no more than 128.
const WRITE: usize = 100;

/// One that an operator made: its object, and its machine.
pub struct Template {
    pub proxy: Value,
    pub machine: Value,
}

/// The key from which the operator derives logins.
pub async fn login_key(api: &KubeApi) -> LoginKey {
    let secret = api.get("/api/v1/namespaces/proxy-operator/secrets/proxy-operator-key").await.expect("the key");
    let bytes = BASE64_STANDARD.decode(secret["data"]["login"].as_str().expect("login")).expect("base64");
    LoginKey::new(bytes.into())
}

/// Makes `count` more of this one, and answers what is to be stored of them.
pub async fn multiply(template: &Template, cloud: &CloudApi, key: &LoginKey, judge: &str, count: usize) -> Vec<Value> {
    let proxies: Vec<Value> = (0..count).map(|number| another(&template.proxy, number)).collect();
    let made = stream::iter(&proxies).map(|proxy| machine_of(template, proxy, cloud, key, judge));
    made.buffer_unordered(AT_ONCE).for_each(|()| std::future::ready(())).await;
    let mut machines = vec![];
    eventually("all have booted", async || {
        machines = cloud.machines().await;
        machines.iter().all(|machine| !machine["port"].is_null())
    })
    .await;
    let by_owner: HashMap<&str, &Value> =
        machines.iter().map(|m| (m["owner"]["proxyUid"].as_str().expect("a UID"), m)).collect();
    let settled = |proxy: Value| {
        let machine = by_owner[proxy["metadata"]["uid"].as_str().expect("a UID")];
        settle(proxy, &template.machine, machine)
    };
    proxies.into_iter().map(settled).collect()
}

/// The same under another name and UID.
fn another(proxy: &Value, number: usize) -> Value {
    let mut proxy = proxy.clone();
    let metadata = proxy["metadata"].as_object_mut().expect("metadata");
    let name = format!("{}-{number}", metadata["name"].as_str().expect("a name"));
    metadata.insert("name".into(), name.into());
    metadata.insert("uid".into(), Uuid::new_v4().to_string().into());
    metadata.remove("resourceVersion");
    metadata.remove("managedFields");
    proxy
}

async fn machine_of(template: &Template, proxy: &Value, cloud: &CloudApi, key: &LoginKey, judge: &str) {
    let (name, uid) = (&proxy["metadata"]["name"], proxy["metadata"]["uid"].as_str().expect("a UID"));
    let installation = &template.machine["owner"]["installation"];
    let login = key.derive(uid, 0);
    let body = json!({
        "owner": {"installation": installation, "proxyUid": uid, "namespace": "default", "name": name},
        "incarnation": 0, "specHash": template.machine["specHash"], "protocol": "http",
        "username": login.username, "password": String::from_utf8_lossy(login.password.expose()),
        "allowTargets": [judge.trim_start_matches("http://").split('/').next()], "bootMs": 0,
    });
    let zone = template.machine["zone"].as_str().expect("a zone");
    let machine = machine_name(installation.as_str().expect("an id"), uid);
    cloud.send(Method::PUT, &format!("/v1/zones/{zone}/instances/{machine}"), Some(body)).await;
}

/// The name that the plugin gives.
fn machine_name(installation: &str, uid: &str) -> String {
    let digest = Sha256::new().chain_update(installation).chain_update([0]).chain_update(uid).finalize();
    let digits: String = digest[..10].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("px-{digits}-0")
}

/// With the status of the template, as it is for this machine.
fn settle(proxy: Value, template: &Value, machine: &Value) -> Value {
    let mut proxy = proxy;
    replace(&mut proxy["status"], template, machine);
    proxy
}

/// Puts one machine's id, name and port in the place of another's.
fn replace(value: &mut Value, from: &Value, to: &Value) {
    match value {
        Value::Number(_) if *value == from["port"] => *value = to["port"].clone(),
        Value::String(text) => {
            for field in ["id", "name"] {
                *text = text.replace(from[field].as_str().expect("text"), to[field].as_str().expect("text"));
            }
            *text = text.replace(&format!(":{}", from["port"]), &format!(":{}", to["port"]));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, from, to)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, from, to)),
        _ => {}
    }
}

/// Stores them below the API server, whose own way takes minutes.
pub async fn store(server: &ApiServer, proxies: &[Value]) {
    for some in proxies.chunks(WRITE) {
        let objects = some.iter().map(|proxy| {
            let name = proxy["metadata"]["name"].as_str().expect("a name");
            (format!("/registry/crawl.example.com/proxies/default/{name}"), proxy.to_string())
        });
        server.store(objects.collect()).await;
    }
}

/// Those of them that are there with a status, as the API server shows them.
pub async fn templates(api: &KubeApi, clouds: &[CloudApi]) -> Vec<Template> {
    let proxies = api.list(&format!("{GROUP}/proxies")).await;
    let mut templates = vec![];
    for cloud in clouds {
        let [machine] = &cloud.machines().await[..] else { panic!("one machine for each cloud") };
        let of_it = proxies.iter().find(|p| p["metadata"]["uid"] == machine["owner"]["proxyUid"]);
        templates.push(Template { proxy: of_it.expect("its Proxy").clone(), machine: machine.clone() });
    }
    templates
}
