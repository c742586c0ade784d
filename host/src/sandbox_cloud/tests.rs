//! The cloud through its API, on real sockets: what the tests share.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::*;

mod api;
mod faults;
mod lifecycle;

/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(10);

const TOKEN: &str = "t0ken";

/// A running cloud and a client of it.
struct Sandbox {
    handle: Handle,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

/// What the API said.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    /// Whether this is the error of that status and code, with a text for people.
    #[track_caller]
    fn assert_error(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.body["error"].as_str()), (status, Some(code)), "{self:?}");
        assert!(self.body["message"].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
    }

    #[track_caller]
    fn assert_status(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.body
    }
}

async fn mk_sandbox() -> Sandbox {
    mk_sandbox_of(100).await
}

async fn mk_sandbox_of(capacity_per_zone: usize) -> Sandbox {
    let listen = "127.0.0.1:0".parse().unwrap();
    let options = Options { capacity_per_zone, ..Options::new(listen, "127.0.0.1", TOKEN) };
    let sandbox = bind(options).await.unwrap();
    let (handle, shutdown) = (sandbox.handle(), CancellationToken::new());
    let task = tokio::spawn(sandbox.serve(shutdown.clone()));
    Sandbox { handle, shutdown, task }
}

/// A create's body, for an open HTTP proxy of the proxy object `name`.
fn mk_body(name: &str) -> Value {
    json!({
        "owner": { "installation": "inst", "proxyUid": format!("uid-{name}"), "namespace": "ns", "name": name },
        "incarnation": 0, "specHash": "hash", "protocol": "http", "bootMs": 0
    })
}

fn path(zone: &str, name: &str) -> String {
    format!("/v1/zones/{zone}/instances/{name}")
}

impl Sandbox {
    /// One request, or nothing if the connection closed without an answer.
    async fn ask(&self, method: &str, path: &str, token: Option<&str>, body: Bytes) -> Option<Answer> {
        let stream = TcpStream::connect(self.handle.local_addr()).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "cloud");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body)).unwrap();
        let answered = timeout(PATIENCE, sender.send_request(request)).await.expect("an answer");
        let (head, body) = answered.ok()?.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        Some(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }

    async fn call(&self, method: &str, path: &str) -> Answer {
        self.ask(method, path, Some("Bearer t0ken"), Bytes::new()).await.expect("an answer")
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.try_send(method, path, body).await.expect("an answer")
    }

    async fn try_send(&self, method: &str, path: &str, body: &Value) -> Option<Answer> {
        self.ask(method, path, Some("Bearer t0ken"), Bytes::from(body.to_string())).await
    }

    /// Makes an instance in zone-a.
    async fn create(&self, name: &str) -> Answer {
        self.send("PUT", &path("zone-a", name), &mk_body(name)).await
    }

    async fn set_faults(&self, faults: Value) {
        self.send("PUT", "/v1/faults", &faults).await.assert_status(204);
    }

    async fn struck(&self) -> Vec<u64> {
        let faults = self.call("GET", "/v1/faults").await.assert_status(200);
        faults.as_array().unwrap().iter().map(|fault| fault["struck"].as_u64().unwrap()).collect()
    }

    /// Waits until the instance in zone-a is in that state.
    async fn reaches(&self, name: &str, state: &str) -> Value {
        self.eventually(name, |answer| answer.body["state"] == state).await.body
    }

    /// Waits until the instance in zone-a is gone.
    async fn vanishes(&self, name: &str) {
        self.eventually(name, |answer| answer.status == 404).await;
    }

    async fn eventually(&self, name: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.call("GET", &path("zone-a", name)).await;
            if holds(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "still {answer:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn ends(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.task).await.expect("a prompt end").unwrap();
    }
}

/// The port of a running instance.
fn port_of(instance: &Value) -> u16 {
    u16::try_from(instance["port"].as_u64().expect("a port")).unwrap()
}

/// Whether somebody listens on a port. On loopback a closed port can connect to itself by chance, which is nobody.
async fn accepts(port: u16) -> bool {
    let connected = TcpStream::connect(("127.0.0.1", port)).await;
    connected.is_ok_and(|stream| stream.local_addr().unwrap().port() != port)
}

/// Asks the proxy at `port` for `url` and gives back all it says.
async fn through(port: u16, url: &str, header: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {url} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
    answer
}

/// A web server that answers each client once, with `page`.
async fn mk_web() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage").await;
        }
    });
    address
}
