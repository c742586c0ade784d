//! A real kube-apiserver with its etcd on loopback, for one test: ready in seconds, gone with the test.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::PATIENCE;

/// What goes into the audit log: every change, and each look at Secrets, and nothing of their content.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}\n- {level: Metadata, resources: [{group: \"\", resources: [secrets]}]}\n- {level: None}\n";
const AUDIT_LOG: &str = "audit.log";

/// The API server. Nothing runs its objects: there are no controllers and no nodes.
pub struct ApiServer {
    children: Vec<Child>,
    dir: TempDir,
    port: u16,
    etcd: String,
    token: String,
}

/// A program of the cluster, as `tests/cluster/build.sh` leaves it.
pub(crate) fn program(name: &str) -> PathBuf {
    crate::root().join("bin/cluster").join(name)
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl ApiServer {
    /// Starts one. None, with the reason printed, where its programs could not be built.
    pub fn start() -> Option<Self> {
        if !program("kube-apiserver").exists() {
            println!("SKIPPED: there is no kube-apiserver: install Go, or set KUBEBUILDER_ASSETS");
            return None;
        }
        // Between choosing a port and listening on it somebody else may take it.
        let mut why = String::new();
        for _ in 0..3 {
            match Self::attempt() {
                Ok(server) => return Some(server),
                Err(error) => why = error,
            }
        }
        panic!("the API server did not start three times: {why}")
    }

    fn attempt() -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let [etcd_port, peer_port, port] = [(); 3].map(|()| free_port());
        let (etcd_url, peer_url) = (format!("http://127.0.0.1:{etcd_port}"), format!("http://127.0.0.1:{peer_port}"));
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(at("sa.key"), key.serialize_pem()).unwrap();
        fs::write(at("sa.pub"), key.public_key_pem()).unwrap();
        let token = uuid::Uuid::new_v4().simple().to_string();
        fs::write(at("tokens.csv"), format!("{token},admin,admin,system:masters\n")).unwrap();
        fs::write(at("kubeconfig"), kubeconfig(port, &token)).unwrap();
        fs::write(at("audit.yaml"), AUDIT_POLICY).unwrap();
        let mut server = Self { children: Vec::new(), dir, port, etcd: etcd_url.clone(), token };
        let own = |name: &str| server.dir.path().join(name).display().to_string();
        let (data, certs, tokens) = (own("etcd"), own("certs"), own("tokens.csv"));
        let (key, public) = (own("sa.key"), own("sa.pub"));
        let (policy, audit) = (own("audit.yaml"), own(AUDIT_LOG));
        server.spawn(
            "etcd",
            &[
                "--data-dir",
                &data,
                "--unsafe-no-fsync",
                "--listen-client-urls",
                &etcd_url,
                "--advertise-client-urls",
                &etcd_url,
                "--listen-peer-urls",
                &peer_url,
                "--initial-advertise-peer-urls",
                &peer_url,
                "--initial-cluster",
                &format!("default={peer_url}"),
            ],
        );
        server.spawn(
            "kube-apiserver",
            &[
                "--etcd-servers",
                &etcd_url,
                "--bind-address",
                "127.0.0.1",
                "--advertise-address",
                "127.0.0.1",
                "--secure-port",
                &port.to_string(),
                "--cert-dir",
                &certs,
                "--service-account-key-file",
                &public,
                "--service-account-signing-key-file",
                &key,
                "--service-account-issuer",
                "https://kubernetes.default.svc",
                "--service-cluster-ip-range",
                "10.96.0.0/24",
                "--authorization-mode",
                "RBAC",
                "--token-auth-file",
                &tokens,
                "--audit-policy-file",
                &policy,
                "--audit-log-path",
                &audit,
            ],
        );
        server.wait_ready()?;
        Ok(server)
    }

    fn spawn(&mut self, name: &str, args: &[&str]) {
        let log = File::create(self.dir.path().join(format!("{name}.log"))).unwrap();
        let child = Command::new(program(name))
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children.push(child);
    }

    fn wait_ready(&mut self) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.children.iter_mut().any(|c| c.try_wait().unwrap().is_some()) {
                return Err(self.logs());
            }
            if self.kubectl(&["get", "--raw", "/readyz"], None).status.success() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(self.logs())
    }

    /// The last lines that each program wrote.
    fn logs(&self) -> String {
        ["etcd", "kube-apiserver"]
            .map(|name| {
                let log = fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                format!("{name}:\n{}\n", last.into_iter().rev().collect::<Vec<_>>().join("\n"))
            })
            .concat()
    }

    /// Every change that its administrator has asked for, the operator of a lab included, as the audit log has it.
    pub fn changes(&self) -> Vec<Value> {
        let mut all = self.audited();
        all.retain(|entry| !is_look(entry));
        all
    }

    /// Every look at Secrets that its administrator has asked for, the operator of a lab included.
    pub fn looks_at_secrets(&self) -> Vec<Value> {
        let mut all = self.audited();
        all.retain(|entry| is_look(entry) && entry["objectRef"]["resource"] == "secrets");
        all
    }

    fn audited(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.dir.path().join(AUDIT_LOG)).unwrap_or_default();
        // The last line may be half written.
        let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        all.filter(|change| change["user"]["username"] == "admin").collect()
    }

    /// Puts objects into its etcd in one write, by their keys there: no admission, no validation.
    pub async fn store(&self, objects: Vec<(String, String)>) {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        let put = |(key, value): (String, String)| json!({"requestPut": {"key": BASE64_STANDARD.encode(key), "value": BASE64_STANDARD.encode(value)}});
        let write = json!({"success": objects.into_iter().map(put).collect::<Vec<_>>()});
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let answer = client.post(format!("{}/v3/kv/txn", self.etcd)).json(&write).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "etcd: {text}");
    }

    /// The kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Its administrator's token.
    pub fn token(&self) -> String {
        self.token.clone()
    }

    /// Its certificate, and that of the authority that it made for itself, in PEM.
    pub fn certificates(&self) -> String {
        fs::read_to_string(self.dir.path().join("certs/apiserver.crt")).unwrap()
    }

    /// Runs kubectl, with this on its standard input.
    pub fn kubectl(&self, args: &[&str], input: Option<&str>) -> Output {
        use std::io::Write;
        let mut child = Command::new(program("kubectl"))
            .args(["--kubeconfig".as_ref(), self.kubeconfig().as_os_str()])
            .args(["--cache-dir".as_ref(), self.dir.path().join("discovery").as_os_str()])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // kubectl that reads nothing closes its end; that is no fault of ours.
        let _ = child.stdin.take().unwrap().write_all(input.unwrap_or_default().as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Runs kubectl, which must succeed; answers what it printed.
    pub fn run(&self, args: &[&str], input: Option<&str>) -> String {
        let output = self.kubectl(args, input);
        assert!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs kubectl, which must fail; answers what it complained about.
    pub fn refused(&self, args: &[&str], input: Option<&str>) -> String {
        let output = self.kubectl(args, input);
        assert!(!output.status.success(), "kubectl {args:?} succeeded: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    /// Applies our CRDs, and waits until they are served.
    pub fn apply_crds(&self) {
        let crds = Command::new(crate::binary()).arg("crd").output().unwrap();
        assert!(crds.status.success());
        self.run(&["apply", "--server-side", "-f", "-"], Some(&String::from_utf8(crds.stdout).unwrap()));
        for crd in ["crd/proxies.crawl.example.com", "crd/providers.crawl.example.com"] {
            self.run(&["wait", "--for=condition=Established", "--timeout=30s", crd], None);
        }
    }
}

/// Whether an entry of the audit log changes nothing.
fn is_look(entry: &Value) -> bool {
    ["get", "list", "watch"].iter().any(|verb| entry["verb"] == *verb)
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn kubeconfig(port: u16, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: lab, cluster: {{server: \"https://127.0.0.1:{port}\", insecure-skip-tls-verify: true}}}}]\nusers: [{{name: admin, user: {{token: {token}}}}}]\ncontexts: [{{name: lab, context: {{cluster: lab, user: admin}}}}]\ncurrent-context: lab\n"
    )
}

/// Every file of a folder of manifests, with its text.
pub fn manifests(dir: &Path) -> Vec<(String, String)> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect()
}
