//! What every lab has beside its operator: a sandbox cloud, and a judge that outlives the operator, since proxies may reach
//! the one that they were made with.

use std::path::Path;

use reqwest::{Client, Method};
use serde_json::Value;

use crate::process::{PATIENCE, Process};

/// The cloud's token.
pub const CLOUD_TOKEN: &str = "sandbox-cloud-token-of-the-lab";

/// A cloud and a judge on loopback.
pub struct Backend {
    /// The cloud; none after an outage.
    pub cloud: Option<Process>,
    _judge: Process,
    /// URL of the cloud's API.
    pub cloud_url: String,
    /// URL of the judge.
    pub judge_url: String,
}

/// The cloud, as its owner sees it.
#[derive(Clone)]
pub struct CloudApi {
    url: String,
    client: Client,
}

impl Backend {
    /// Starts both; their files go into `dir`.
    pub fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[])
    }

    /// The same, with more arguments for the cloud.
    pub fn start_with(dir: &Path, more: &[&str]) -> Self {
        let token = dir.join("cloud-token");
        std::fs::write(&token, CLOUD_TOKEN).unwrap();
        let token = token.display().to_string();
        let any = "127.0.0.1:0";
        let args = [&["sandbox-cloud", "--listen", any, "--token-file", &token], more].concat();
        let (cloud, cloud_says) = Process::start(&args, &dir.join("cloud.log"));
        let (judge, judge_says) = Process::start(&["judge", "--listen", any], &dir.join("judge.log"));
        let url = |line: &str| line.split_whitespace().last().unwrap().to_owned();
        Self { cloud: Some(cloud), _judge: judge, cloud_url: url(&cloud_says), judge_url: url(&judge_says) }
    }

    /// The cloud's API.
    pub fn api(&self) -> CloudApi {
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        CloudApi { url: self.cloud_url.clone(), client }
    }
}

impl CloudApi {
    /// Everything that the cloud holds.
    pub async fn machines(&self) -> Vec<Value> {
        let mut machines = vec![];
        let mut path = "/v1/instances?limit=100".to_owned();
        loop {
            let page = self.send(Method::GET, &path, None).await;
            machines.extend(page["instances"].as_array().unwrap().iter().cloned());
            let Some(next) = page["next"].as_str() else { return machines };
            path = format!("/v1/instances?limit=100&cursor={next}");
        }
    }

    /// Switches a machine off.
    pub async fn stop(&self, machine: &Value) {
        self.send(Method::POST, &format!("{}/stop", path(machine)), None).await;
    }

    /// Deletes a machine.
    pub async fn delete(&self, machine: &Value) {
        self.send(Method::DELETE, &path(machine), None).await;
    }

    /// A request that must succeed.
    pub async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(CLOUD_TOKEN);
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await.unwrap().error_for_status().unwrap().json().await.unwrap()
    }
}

fn path(machine: &Value) -> String {
    let text = |field: &str| machine[field].as_str().unwrap().to_owned();
    format!("/v1/zones/{}/instances/{}", text("zone"), text("name"))
}
