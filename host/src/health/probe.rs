//! One probe: a request through the proxy, with its login, to a judge.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use fast_socks5::client::{Config, Socks5Stream};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, PROXY_AUTHORIZATION};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Target;
use super::judge::Judgement;
use crate::model::login::Login;
use crate::model::proxy::{ProbeMode, Protocol};

/// A probe takes no longer.
const DEADLINE: Duration = Duration::from_secs(10);
/// A judge's answer is no larger; what is larger is no judge.
const ANSWER_BYTES: usize = 4096;

/// Why a probe failed. Whose fault it is decides what follows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Whose fault.
    pub kind: FailureKind,
    /// For people.
    pub message: String,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The port accepts no connection.
    Unreachable,
    /// Nothing came in time.
    TimedOut,
    /// The proxy refused its own login.
    LoginRefused,
    /// Something answered that is not our proxy.
    NotOurProxy,
    /// The proxy serves, and reaches no judge.
    JudgeUnreachable,
    /// The proxy broke off.
    Broken,
}

impl FailureKind {
    /// The condition reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unreachable => "ProxyUnreachable",
            Self::TimedOut => "ProbeTimedOut",
            Self::LoginRefused => "LoginRefused",
            Self::NotOurProxy => "NotOurProxy",
            Self::JudgeUnreachable => "JudgeUnreachable",
            Self::Broken => "ProxyBroken",
        }
    }
}

fn failure(kind: FailureKind, message: impl fmt::Display) -> Failure {
    Failure { kind, message: message.to_string() }
}

/// Probes once; answers the address that the judge saw.
///
/// # Errors
/// What failed, and whose fault it is.
pub async fn probe(target: &Target) -> Result<Option<String>, Failure> {
    match tokio::time::timeout(DEADLINE, attempt(target)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(failure(
            FailureKind::TimedOut,
            format!("{} did not answer within {} s", target.endpoint.authority(), DEADLINE.as_secs()),
        )),
    }
}

async fn attempt(target: &Target) -> Result<Option<String>, Failure> {
    let at = target.endpoint.authority();
    let unreachable = |e: std::io::Error| failure(FailureKind::Unreachable, format!("{at}: {e}"));
    if target.check.mode == ProbeMode::Tcp {
        return TcpStream::connect(&at).await.map(|_| None).map_err(unreachable);
    }
    let nonce: String = uuid::Uuid::new_v4().simple().to_string();
    let judge: Uri = format!("{}?nonce={nonce}", target.judge).parse().map_err(|_| {
        failure(FailureKind::JudgeUnreachable, format!("the judge's URL {:?} is unusable", target.judge))
    })?;
    let host = judge.authority().map(|a| a.to_string()).unwrap_or_default();
    let (stream, uri, login) = match target.endpoint.protocol {
        // Absolute form, as an HTTP client speaks to its proxy.
        Protocol::Http => {
            (Stream::Tcp(TcpStream::connect(&at).await.map_err(unreachable)?), judge, target.login.as_ref())
        }
        Protocol::Socks5 => {
            let path = judge.path_and_query().map(|p| p.to_string()).unwrap_or_default();
            let path =
                path.parse().map_err(|_| failure(FailureKind::JudgeUnreachable, "the judge's URL is unusable"))?;
            (Stream::Socks(through_socks(target, &judge).await?), path, None)
        }
    };
    let (status, body) = match stream {
        Stream::Tcp(stream) => exchange(stream, &uri, &host, login).await?,
        Stream::Socks(stream) => exchange(stream, &uri, &host, login).await?,
    };
    judge_answer(target, status, &body, &nonce)
}

enum Stream {
    Tcp(TcpStream),
    Socks(Socks5Stream<TcpStream>),
}

async fn through_socks(target: &Target, judge: &Uri) -> Result<Socks5Stream<TcpStream>, Failure> {
    let at = target.endpoint.authority();
    let (host, port) =
        (judge.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(), judge.port_u16().unwrap_or(80));
    let tcp = TcpStream::connect(&at).await.map_err(|e| failure(FailureKind::Unreachable, format!("{at}: {e}")))?;
    let mut stream = match &target.login {
        Some(login) => {
            let password = login.password.expose_line().unwrap_or_default().to_owned();
            let method = fast_socks5::AuthenticationMethod::Password { username: login.username.clone(), password };
            Socks5Stream::use_stream(tcp, Some(method), Config::default()).await
        }
        None => Socks5Stream::use_stream(tcp, None, Config::default()).await,
    }
    .map_err(|e| socks_failure(&at, &e))?;
    let destination = match host.parse() {
        Ok(ip) => fast_socks5::util::target_addr::TargetAddr::Ip(std::net::SocketAddr::new(ip, port)),
        Err(_) => fast_socks5::util::target_addr::TargetAddr::Domain(host, port),
    };
    stream.request(fast_socks5::Socks5Command::TCPConnect, destination).await.map_err(|e| socks_failure(&at, &e))?;
    Ok(stream)
}

fn socks_failure(at: &str, error: &fast_socks5::SocksError) -> Failure {
    use fast_socks5::SocksError as E;
    match error {
        E::AuthenticationRejected(_) | E::AuthMethodUnacceptable(_) => {
            failure(FailureKind::LoginRefused, format!("{at} refused the proxy's login"))
        }
        E::ReplyError(reply) => {
            failure(FailureKind::JudgeUnreachable, format!("{at} serves, and did not reach the judge: {reply}"))
        }
        E::UnsupportedSocksVersion(_) => failure(FailureKind::NotOurProxy, format!("{at} does not speak SOCKS5")),
        other => failure(FailureKind::Broken, format!("{at}: {other}")),
    }
}

async fn exchange<S>(stream: S, uri: &Uri, host: &str, login: Option<&Login>) -> Result<(StatusCode, Bytes), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |e: hyper::Error| {
        let kind = if e.is_parse() { FailureKind::NotOurProxy } else { FailureKind::Broken };
        failure(kind, format!("the proxy's answer broke off or is no HTTP: {e}"))
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let driver = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
    let mut request = Request::get(uri).header(HOST, host);
    if let Some(login) = login {
        let pair = format!("{}:{}", login.username, login.password.expose_line().unwrap_or_default());
        let pair = base64::engine::general_purpose::STANDARD.encode(pair);
        request = request.header(PROXY_AUTHORIZATION, format!("Basic {pair}"));
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|_| failure(FailureKind::JudgeUnreachable, "the judge's URL is unusable"))?;
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES)
        .collect()
        .await
        .map_err(|e| failure(FailureKind::NotOurProxy, format!("the answer is not a judge's: {e}")))?
        .to_bytes();
    drop(driver);
    Ok((status, body))
}

fn judge_answer(target: &Target, status: StatusCode, body: &[u8], nonce: &str) -> Result<Option<String>, Failure> {
    let at = target.endpoint.authority();
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        return Err(failure(FailureKind::LoginRefused, format!("{at} refused the proxy's login (407)")));
    }
    if status == StatusCode::OK
        && let Ok(judgement) = serde_json::from_slice::<Judgement>(body)
        && judgement.nonce == nonce
    {
        return Ok(Some(judgement.address).filter(|a| a.parse::<std::net::IpAddr>().is_ok()));
    }
    if status.is_server_error() || status == StatusCode::FORBIDDEN {
        return Err(failure(
            FailureKind::JudgeUnreachable,
            format!("{at} serves, and did not reach the judge at {} ({status})", target.judge),
        ));
    }
    Err(failure(
        FailureKind::NotOurProxy,
        format!("{at} answered {status} without the judge's nonce: something else serves there"),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::model::naming::ProxyKey;
    use crate::model::proxy::Endpoint;

    fn mk_target(port: u16, protocol: Protocol) -> Target {
        Target {
            key: ProxyKey { namespace: "n".into(), name: "a".into() },
            uid: "u".into(),
            incarnation: 0,
            endpoint: Endpoint { host: "127.0.0.1".into(), port, protocol },
            login: None,
            check: serde_json::from_value(json!({})).unwrap(),
            judge: "http://judge.example:8082/judge".into(),
        }
    }

    /// A proxy that reads, gives this answer and hangs up; without one it only listens.
    async fn failing(answer: Option<&'static str>) -> &'static str {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = client.read(&mut request).await;
            match answer {
                Some(answer) => client.write_all(answer.as_bytes()).await.unwrap(),
                None => std::future::pending().await,
            }
        });
        let failure = probe(&mk_target(port, Protocol::Http)).await.unwrap_err();
        server.abort();
        failure.kind.reason()
    }

    #[tokio::test]
    async fn whose_fault_a_failure_is_is_told_apart() {
        let refused = "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(failing(Some(refused)).await, "LoginRefused");
        assert_eq!(failing(Some("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")).await, "NotOurProxy");
        assert_eq!(failing(Some("")).await, "ProxyBroken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_says_nothing_has_a_deadline() {
        assert_eq!(failing(None).await, "ProbeTimedOut");
    }
}
