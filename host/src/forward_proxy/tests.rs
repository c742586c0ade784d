//! The proxy on real sockets: what the tests of both protocols share.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;

mod http;
mod limits;
mod socks5;

/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running proxy.
struct Proxy {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

async fn mk_proxy(options: Options) -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve(listener, options, shutdown.clone()));
    Proxy { address, shutdown, task }
}

/// Options with which `targets`, all on loopback, can be reached.
fn mk_options(protocol: Protocol, targets: &[SocketAddr]) -> Options {
    let allow_targets = targets.iter().map(|target| target.to_string().parse().unwrap()).collect();
    Options { allow_targets, ..Options::new(protocol) }
}

fn mk_login() -> Option<Login> {
    Some(Login { username: "crawler".into(), password: "pa:ss word".into() })
}

/// `Proxy-Authorization` of [`mk_login`].
const RIGHT: &str = "Proxy-Authorization: Basic Y3Jhd2xlcjpwYTpzcyB3b3Jk\r\n";
/// The same with another password.
const WRONG: &str = "Proxy-Authorization: Basic Y3Jhd2xlcjp3cm9uZw==\r\n";

/// A web server. `/echo` sends the body back as it comes, `/hop` answers with headers for one hop, `/silent` never answers,
/// and all else lists the request as it arrived.
async fn mk_origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer_as_origin));
            tokio::spawn(served);
        }
    });
    address
}

async fn answer_as_origin(request: Request<Incoming>) -> Result<Response<BoxBody<Bytes, hyper::Error>>, hyper::Error> {
    if request.uri().path() == "/silent" {
        std::future::pending::<()>().await;
    }
    if request.uri().path() == "/echo" {
        return Ok(Response::new(request.into_body().boxed()));
    }
    let hop = request.uri().path() == "/hop";
    let mut lines = vec![format!("{} {}", request.method(), request.uri())];
    for (name, value) in request.headers() {
        lines.push(format!("{name}: {}", value.to_str().unwrap()));
    }
    lines.sort();
    let body = Full::new(Bytes::from(lines.join("\n"))).map_err(|never| match never {}).boxed();
    let mut answer = Response::new(body);
    if hop {
        for (name, value) in [
            ("connection", "x-listed"),
            ("x-listed", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authenticate", "Basic realm=\"not mine\""),
            ("proxy-status", "somebody; error=forged"),
            ("x-kept", "2"),
        ] {
            answer.headers_mut().append(name, value.parse().unwrap());
        }
    }
    Ok(answer)
}

/// A server that sends back what it gets.
async fn mk_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address
}

/// An address on which nothing listens and nothing will while the socket lives.
fn mk_closed_port() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Sends `text` and reads until the other side closes.
async fn exchange(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    read_all(&mut stream).await
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset behind the answer is as good as a close.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an answer in time");
    String::from_utf8(answer).unwrap()
}

/// Reads one answer's head, up to and with the empty line.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await.expect("a head in time").unwrap();
        head.push(byte);
    }
    String::from_utf8(head).unwrap()
}

/// A tunnel to `target` through CONNECT.
async fn connect_tunnel(proxy: SocketAddr, target: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    stream
}

/// Sends a few bytes to an echo and waits for them.
async fn assert_echoes(stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin)) {
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    timeout(PATIENCE, stream.read_exact(&mut back)).await.expect("an echo in time").unwrap();
    assert_eq!(&back, b"hello");
}

/// Waits until the other side has closed the stream, politely or not.
async fn assert_closes(stream: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("a close in time");
}
