//! The CNCF registry on loopback, for one test: gone with the test.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use proxy_operator::model::secret::SecretBytes;
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::apiserver::{free_port, program};
use crate::process::PATIENCE;

const USER: &str = "puller";
/// Of the user; the line of htpasswd below is made of it.
pub const PASSWORD: &str = "pull-passw0rd";
const HTPASSWD: &str = "puller:$2b$05$abcdefghijklmnopqrstuud03MOljbcKmdSLLjtx3roHIx0nXUeq.\n";

/// A registry that wants credentials.
pub struct OciRegistry {
    child: Child,
    port: u16,
    client: Client,
    _dir: TempDir,
}

impl OciRegistry {
    /// Starts one. None, with the reason printed, where its program could not be built.
    pub async fn start() -> Option<Self> {
        if !program("registry").exists() {
            println!("SKIPPED: there is no OCI registry: install Go");
            return None;
        }
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        fs::write(dir.path().join("htpasswd"), HTPASSWD).unwrap();
        let config = json!({
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": dir.path().join("data")}},
            "http": {"addr": format!("127.0.0.1:{port}"), "secret": "of-the-lab"},
            "auth": {"htpasswd": {"realm": "lab", "path": dir.path().join("htpasswd")}},
        });
        // JSON is YAML.
        fs::write(dir.path().join("config.yml"), config.to_string()).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let child = Command::new(program("registry"))
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let client = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let registry = Self { child, port, client, _dir: dir };
        let until = Instant::now() + PATIENCE;
        while registry.client.get(format!("http://{}/v2/", registry.host())).send().await.is_err() {
            assert!(Instant::now() < until, "the registry does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(registry)
    }

    /// HOST:PORT.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What a pull Secret holds for it.
    pub fn docker_config(&self, password: &str) -> SecretBytes {
        let auth = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{password}"));
        json!({"auths": {self.host(): {"auth": auth}}}).to_string().into()
    }

    /// Pushes a layer as an artifact with this tag; answers the digest of its manifest.
    pub async fn push(&self, tag: &str, media_type: &str, bytes: &[u8]) -> String {
        let layer = self.push_blob(bytes).await;
        let config = self.push_blob(b"{}").await;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.wasm.config.v0+json", "digest": config, "size": 2},
            "layers": [{"mediaType": media_type, "digest": layer, "size": bytes.len()}],
        });
        let request = self.client.request(Method::PUT, format!("http://{}/v2/plugins/manifests/{tag}", self.host()));
        let request =
            request.header("content-type", manifest["mediaType"].as_str().unwrap()).body(manifest.to_string());
        header(&self.send(request).await, "docker-content-digest")
    }

    async fn push_blob(&self, bytes: &[u8]) -> String {
        use sha2::{Digest, Sha256};
        let digest = format!("sha256:{}", proxy_operator::model::spec_hash::hex(&Sha256::digest(bytes)));
        let begun = self.send(self.client.post(format!("http://{}/v2/plugins/blobs/uploads/", self.host()))).await;
        let at = header(&begun, "location");
        let at = if at.starts_with('/') { format!("http://{}{at}", self.host()) } else { at };
        let separator = if at.contains('?') { '&' } else { '?' };
        self.send(self.client.put(format!("{at}{separator}digest={digest}")).body(bytes.to_vec())).await;
        digest
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Response {
        let answer = request.basic_auth(USER, Some(PASSWORD)).send().await.unwrap();
        if !answer.status().is_success() {
            let (status, body) = (answer.status(), answer.json::<Value>().await);
            panic!("the registry answered {status}: {body:?}");
        }
        answer
    }
}

fn header(answer: &Response, name: &str) -> String {
    answer.headers()[name].to_str().unwrap().to_owned()
}

impl Drop for OciRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
