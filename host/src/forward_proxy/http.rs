//! The HTTP side: requests in absolute form are sent on, CONNECT opens a tunnel.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::activity::{Activity, Watched};
use super::egress::Purpose;
use super::headers::strip_hop_by_hop;
use super::reply::{self, Body, Failure};
use super::target::Target;
use super::{Behaviour, Shared, tunnel, wrong_page};

/// The longest request head, and the most of a body that is held at once. Cookies of crawled sites reach 8 KiB and more.
const BUFFER: usize = 64 * 1024;

/// A tunnel that begins when the client has its answer. `None` as the target is the page of a wrong proxy.
struct Tunnel {
    client: OnUpgrade,
    target: Option<TcpStream>,
}

/// What the requests of one client need.
struct Client {
    shared: Arc<Shared>,
    activity: Activity,
    /// Where CONNECT leaves its tunnel, so that the client's own task runs it: no task is left for a shutdown to find.
    tunnel: Mutex<Option<Tunnel>>,
}

/// Speaks HTTP/1 with one client until it is done.
pub(super) async fn serve_client(stream: Watched<TcpStream>, activity: Activity, shared: Arc<Shared>) {
    let handshake = shared.deadlines.handshake;
    let client = Arc::new(Client { shared, activity, tunnel: Mutex::new(None) });
    let service = service_fn(|request| {
        let client = Arc::clone(&client);
        async move {
            let answer = client.answer(request).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(Response::from))
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(handshake)
        .max_buf_size(BUFFER)
        // Some sites tell crawlers from browsers by how header names are written, so they pass as they came.
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "HTTP client's connection ended");
    }
    let opened = client.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Tunnel { client, target }) = opened else {
        return;
    };
    let Ok(upgraded) = client.await else { return };
    let mut upgraded = TokioIo::new(upgraded);
    match target {
        Some(mut target) => tunnel::relay(&mut upgraded, &mut target).await,
        None => wrong_page::answer(&mut upgraded).await,
    }
}

impl Client {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        if self.shared.behaviour == Behaviour::WrongPage {
            return Ok(self.answer_wrongly(request));
        }
        // Before anything else: who may not use the proxy learns nothing of what it can reach.
        if self.shared.login.as_ref().is_some_and(|login| !login.admits_request(request.headers())) {
            return Ok(reply::login_wanted());
        }
        if request.method() == Method::CONNECT { self.connect(request).await } else { self.forward(request).await }
    }

    fn answer_wrongly(&self, request: Request<Incoming>) -> Response<Body> {
        if request.method() != Method::CONNECT {
            return reply::wrong_page();
        }
        self.open(request, None);
        reply::tunnel_open()
    }

    async fn connect(&self, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let target = match (request.uri().host(), request.uri().port_u16()) {
            (Some(host), Some(port)) => Target::new(host, port),
            _ => return Err(Failure::bad_request("CONNECT needs HOST:PORT")),
        };
        let stream = self.shared.egress.connect(&target, Purpose::Connect).await?;
        tracing::debug!(%target, "tunnel opened");
        self.open(request, Some(stream));
        Ok(reply::tunnel_open())
    }

    fn open(&self, request: Request<Incoming>, target: Option<TcpStream>) {
        let tunnel = Tunnel { client: hyper::upgrade::on(request), target };
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let (target, host) = absolute_target(request.uri())?;
        let stream = self.shared.egress.connect(&target, Purpose::Forward).await?;
        tracing::debug!(%target, method = %request.method(), "request forwarded");

        strip_hop_by_hop(request.headers_mut());
        request.extensions_mut().remove::<OnUpgrade>();
        *request.version_mut() = Version::HTTP_11;
        *request.uri_mut() = origin_form(request.uri());
        // The request line says where to go, whatever `Host` says (RFC 9112 §3.2.2).
        request.headers_mut().insert(HOST, host);

        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .preserve_header_case(true)
            .max_buf_size(BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Failure::bad_answer(Some(&error)))?;
        let driver = AbortOnDropHandle::new(self.shared.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "target's connection ended");
            }
        }));
        let mut answer = tokio::select! {
            answer = sender.send_request(request) => answer.map_err(|error| Failure::bad_answer(Some(&error)))?,
            // Silence, not time: a large upload may take long.
            () = self.activity.quiet_for(self.shared.deadlines.answer) => return Err(Failure::no_answer()),
        };
        // Nobody asked to switch protocols: the header that does was taken out.
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::bad_answer(None));
        }
        strip_hop_by_hop(answer.headers_mut());
        *answer.version_mut() = Version::HTTP_11;
        Ok(answer.map(|body| Streaming { body, _driver: driver }.boxed()))
    }
}

/// Where a request in absolute form goes, and what its `Host` must be. User and password in the URI are left behind.
fn absolute_target(uri: &Uri) -> Result<(Target, HeaderValue), Failure> {
    let Some(scheme) = uri.scheme_str() else {
        return Err(Failure::bad_request("this is a proxy: ask for a whole URL, as in GET http://example.com/"));
    };
    if scheme != "http" {
        return Err(Failure::bad_request("only http URLs are forwarded; use CONNECT for anything else"));
    }
    let Some(host) = uri.host().filter(|host| !host.is_empty()) else {
        return Err(Failure::bad_request("the URL has no host"));
    };
    let written = match uri.port_u16() {
        Some(port) => HeaderValue::try_from(format!("{host}:{port}")),
        None => HeaderValue::try_from(host),
    };
    let written = written.map_err(|_| Failure::bad_request("the URL's host cannot be sent on"))?;
    Ok((Target::new(host, uri.port_u16().unwrap_or(80)), written))
}

/// The path and query, which is all that a target is asked for.
fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from)
}

/// A target's body as it streams in. It owns the task that drives the target's connection, so that a client who leaves takes
/// the connection along.
struct Streaming {
    body: Incoming,
    _driver: AbortOnDropHandle<()>,
}

impl HttpBody for Streaming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
