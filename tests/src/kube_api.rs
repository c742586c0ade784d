//! An API server, spoken to as kubectl does once it runs: starting kubectl takes longer than what most tests wait for.

use reqwest::{Client, Method, StatusCode};
use serde_json::Value;

use crate::apiserver::ApiServer;
use crate::process::PATIENCE;

/// Where our objects are.
pub const GROUP: &str = "/apis/crawl.example.com/v1alpha1";

/// A client of an API server, with its administrator's token.
pub struct KubeApi {
    url: String,
    token: String,
    client: Client,
}

impl KubeApi {
    /// Of this server.
    pub fn of(server: &ApiServer) -> Self {
        let client = Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).timeout(PATIENCE).build();
        Self { url: server.url(), token: server.token(), client: client.expect("a client") }
    }

    async fn send(&self, method: Method, path: &str, body: Option<(&str, Value)>) -> (StatusCode, Value) {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some((kind, body)) = body {
            request = request.header("content-type", kind).body(body.to_string());
        }
        let answer = request.send().await.expect("the API server answers");
        (answer.status(), answer.json().await.expect("JSON"))
    }

    /// What must succeed.
    async fn must(&self, method: Method, path: &str, body: Option<(&str, Value)>) -> Value {
        let (status, body) = self.send(method, path, body).await;
        assert!(status.is_success(), "{path}: {body}");
        body
    }

    /// An object, or a list of them; none when there is no such object.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.send(Method::GET, path, None).await;
        assert!(status.is_success() || status == StatusCode::NOT_FOUND, "{path}: {body}");
        status.is_success().then_some(body)
    }

    /// The items of a list.
    pub async fn list(&self, path: &str) -> Vec<Value> {
        let list = self.get(path).await.unwrap_or_else(|| panic!("{path} is no list"));
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Makes an object in the list at this path.
    pub async fn create(&self, path: &str, object: Value) -> Value {
        self.must(Method::POST, path, Some(("application/json", object))).await
    }

    /// Changes an object by a merge patch.
    pub async fn patch(&self, path: &str, patch: Value) -> Value {
        self.must(Method::PATCH, path, Some(("application/merge-patch+json", patch))).await
    }

    /// Asks for an object's deletion, which may take; what is not there is deleted.
    pub async fn delete(&self, path: &str) {
        let (status, body) = self.send(Method::DELETE, path, None).await;
        assert!(status.is_success() || status == StatusCode::NOT_FOUND, "{path}: {body}");
    }
}

/// A condition of an object; null where it has none of that type.
pub fn condition(object: &Value, type_: &str) -> Value {
    let all = object["status"]["conditions"].as_array();
    all.into_iter().flatten().find(|condition| condition["type"] == type_).cloned().unwrap_or_default()
}

/// Whether its condition `Ready` is true.
pub fn is_ready(object: &Value) -> bool {
    condition(object, "Ready")["status"] == "True"
}

/// Whether it has this finalizer.
pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().any(|f| f == finalizer)
}
