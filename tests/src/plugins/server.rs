//! A backend whose every answer a test writes down, the impossible ones included.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::eventually;

/// One request that came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl Asked {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// What it is answered.
pub enum Reply {
    /// Status, headers, body.
    Answer(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// These bytes, then the end.
    Raw(Vec<u8>),
    /// These bytes, then nothing more, and the connection stays open.
    Stall(Vec<u8>),
    /// The connection closes without a word.
    HangUp,
    /// Nothing, for ever.
    Silence,
}

impl Reply {
    /// A status with a JSON body.
    pub fn json(status: u16, body: Value) -> Self {
        Self::Answer(status, vec![("content-type", "application/json".into())], body.to_string().into_bytes())
    }

    /// A status alone.
    pub fn status(status: u16) -> Self {
        Self::Answer(status, vec![], vec![])
    }
}

/// A running backend. It ends when dropped.
pub struct Server {
    /// Where it listens, on loopback.
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _serving: AbortOnDropHandle<()>,
}

impl Server {
    /// Answers every request with what `reply` comes to.
    pub async fn start<F, R>(reply: F) -> Self
    where
        F: Fn(Asked) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback");
        let address = listener.local_addr().expect("its address");
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (seen, reply) = (asked.clone(), Arc::new(reply));
        let serving = tokio::spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (seen, reply) = (seen.clone(), reply.clone());
                clients.spawn(async move {
                    // A client that gives up in the middle is what some tests are about.
                    let _ = serve(client, &seen, &*reply).await;
                });
            }
        });
        Self { address, asked, _serving: AbortOnDropHandle::new(serving) }
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.asked).clone()
    }

    /// Waits until this many requests have come.
    pub async fn wait_asked(&self, count: usize) {
        eventually(&format!("{count} requests have come"), async || lock(&self.asked).len() >= count).await;
    }
}

fn lock(asked: &Mutex<Vec<Asked>>) -> MutexGuard<'_, Vec<Asked>> {
    asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One request a connection.
async fn serve<R: Future<Output = Reply>>(
    mut client: TcpStream,
    seen: &Mutex<Vec<Asked>>,
    reply: impl Fn(Asked) -> R,
) -> std::io::Result<()> {
    let Some(asked) = read(&mut client).await? else { return Ok(()) };
    lock(seen).push(asked.clone());
    let bytes = match reply(asked).await {
        Reply::HangUp => return Ok(()),
        Reply::Silence => std::future::pending().await,
        Reply::Stall(bytes) => {
            client.write_all(&bytes).await?;
            std::future::pending().await
        }
        Reply::Raw(bytes) => bytes,
        Reply::Answer(status, headers, body) => {
            let mut head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            [head.into_bytes(), b"\r\n".to_vec(), body].concat()
        }
    };
    client.write_all(&bytes).await?;
    client.shutdown().await
}

async fn read(client: &mut TcpStream) -> std::io::Result<Option<Asked>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut body = bytes.split_off(end + 4);
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut asked = Asked {
        method: first.next().unwrap_or_default(),
        target: first.next().unwrap_or_default(),
        headers,
        body: vec![],
    };
    let length = asked.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while body.len() < length {
        if client.read_buf(&mut body).await? == 0 {
            return Ok(None);
        }
    }
    asked.body = body;
    Ok(Some(asked))
}
