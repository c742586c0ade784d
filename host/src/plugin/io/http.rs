//! `http`: requests by connection name. The host adds origin, trust and credentials; it follows no redirect and asks no
//! proxy of the environment.

mod auth;
mod google;
mod origin;
mod token;

use std::error::Error as _;
use std::time::Duration;

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use tracing::Instrument;

pub(in crate::plugin) use self::origin::{Origin, builder, check_literal};
use super::address::GuardError;
use super::fault;
use crate::model::secret::Known;
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::bindings::crawl::provider::http::{Host, HttpRequest, HttpResponse};
use crate::plugin::call::CallState;
use crate::plugin::grants::Grants;
use crate::plugin::limits::{BODY_BYTES, HEADER_BYTES, HEADER_COUNT};

/// Headers of an answer that a guest has no use for.
const WITHHELD: [&str; 3] = ["set-cookie", "www-authenticate", "authorization"];

impl Host for CallState {
    async fn send(
        &mut self,
        connection: String,
        request: HttpRequest,
    ) -> wasmtime::Result<Result<HttpResponse, Fault>> {
        let watch = self.watch("http", self.grants.http(&connection).is_ok().then_some(connection.as_str()));
        let answer = self.watched_send(connection, request).instrument(watch.span.clone()).await?;
        watch.ended(&answer);
        Ok(answer)
    }
}

impl CallState {
    /// Sends it over the connection.
    pub(in crate::plugin) async fn send_now(
        &mut self,
        connection: String,
        request: HttpRequest,
    ) -> wasmtime::Result<Result<HttpResponse, Fault>> {
        let grants = self.grants.clone();
        let origin = match grants.http(&connection) {
            Ok(origin) => origin,
            Err(why) => return Ok(Err(fault(FaultKind::UnknownConnection, false, why))),
        };
        // Not bounded by the rest of the call: the call's own deadline strikes then, and says so. Bounded, the two would
        // race, and a guest that is told so late has no time left to make anything of it.
        let limit = Duration::from_millis(request.timeout_ms.into());
        let change = !matches!(request.method.as_str(), "GET" | "HEAD");
        // Said before the first byte: a call that is dropped at its deadline cannot say it afterwards.
        let before = self.progress.begin(format!("connection {connection:?}"), change);
        let mut sent = false;
        let answer = match tokio::time::timeout(limit, exchange(origin, &grants, request, &mut self.secrets, &mut sent))
            .await
        {
            Ok(answer) => answer,
            Err(_) => Err(fault(FaultKind::TimedOut, sent, format!("no whole answer within {} ms", limit.as_millis()))),
        };
        self.progress.end(before || (change && sent));
        Ok(answer)
    }
}

/// One request and its whole answer. `sent` turns true as soon as something may have left.
async fn exchange(
    origin: &Origin,
    grants: &Grants,
    request: HttpRequest,
    secrets: &mut Known,
    sent: &mut bool,
) -> Result<HttpResponse, Fault> {
    let method = Method::from_bytes(request.method.as_bytes())
        .ok()
        .filter(|m| {
            m.as_str().chars().all(|c| c.is_ascii_uppercase()) && !matches!(*m, Method::CONNECT | Method::TRACE)
        })
        .ok_or_else(|| fault(FaultKind::Denied, false, format!("method {:?} is not sent", request.method)))?;
    let url = origin.url(&request)?;
    if !origin.allowed(method.as_str(), &request.path) {
        return Err(fault(
            FaultKind::Denied,
            false,
            format!(
                "the connection's `allow` rules do not hold {method} {}; add a rule to the Provider if it is meant",
                request.path
            ),
        ));
    }
    check_literal(&origin.guard, &url).map_err(|e| fault(FaultKind::Denied, false, e.to_string()))?;
    let headers = origin.headers(&request)?;
    let client = origin.client(grants).await.map_err(|e| fault(FaultKind::Credential, false, e.to_string()))?;
    let body = bytes::Bytes::from(request.body.unwrap_or_default());
    if body.len() > BODY_BYTES {
        return Err(fault(FaultKind::TooLarge, false, format!("the request's body is over {BODY_BYTES} bytes")));
    }
    let mut again = method.is_safe();
    loop {
        let mut headers = headers.clone();
        let credential = origin.auth.credential(grants).await?;
        if let Some(credential) = &credential {
            headers.insert(credential.name.clone(), credential.value.clone());
            secrets.push(credential.secret.clone());
        }
        *sent = true;
        let request = client.request(method.clone(), url.clone()).headers(headers).body(body.clone());
        let answer = request.send().await.map_err(|e| classify(&e, sent))?;
        if let Some(peer) = answer.remote_addr() {
            // What a name resolved to is what was dialled; looked at once more, since the guard is only as good as that.
            let checked = origin.guard.check(url.host_str().unwrap_or_default(), peer.ip());
            checked.map_err(|e| fault(FaultKind::Denied, true, e.to_string()))?;
        }
        if answer.status() == StatusCode::UNAUTHORIZED
            && let Some(credential) = credential
            && origin.auth.forget(&credential.secret).await
            && std::mem::take(&mut again)
        {
            // The token ended early. Only what changes nothing is asked again; all else is asked by whoever asked.
            continue;
        }
        return read(answer).await;
    }
}

async fn read(answer: reqwest::Response) -> Result<HttpResponse, Fault> {
    let status = answer.status().as_u16();
    let headers: Vec<_> = answer
        .headers()
        .iter()
        .filter(|(name, _)| !WITHHELD.contains(&name.as_str()))
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect();
    if headers.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>() > HEADER_BYTES || headers.len() > HEADER_COUNT {
        let what = format!("the answer's headers are over {HEADER_BYTES} bytes or {HEADER_COUNT} in number");
        return Err(fault(FaultKind::TooLarge, true, what));
    }
    let mut body = Vec::new();
    let mut stream = answer.bytes_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|e| classify(&e, &mut true))?;
        if body.len() + chunk.len() > BODY_BYTES {
            return Err(fault(FaultKind::TooLarge, true, format!("the answer's body is over {BODY_BYTES} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(HttpResponse { status, headers, body })
}

/// The class of a client's error. A failed connection means that nothing was sent.
fn classify(error: &reqwest::Error, sent: &mut bool) -> Fault {
    let mut source = error.source();
    let mut deepest = error.to_string();
    while let Some(inner) = source {
        if let Some(guard) = inner.downcast_ref::<GuardError>() {
            *sent = false;
            let kind = if matches!(guard, GuardError::Dns(_)) { FaultKind::Dns } else { FaultKind::Denied };
            return fault(kind, false, guard.to_string());
        }
        if is_tls(inner) {
            *sent = false;
            let remedy = "is it the right server, and does http.ca hold its certificate authority?";
            return fault(FaultKind::Tls, false, format!("TLS failed: {inner}; {remedy}"));
        }
        if let Some(error) = inner.downcast_ref::<hyper::Error>().filter(|error| error.is_parse()) {
            let kind = if error.is_parse_too_large() { FaultKind::TooLarge } else { FaultKind::Protocol };
            return fault(kind, *sent, format!("the answer cannot be read: {error}"));
        }
        deepest = inner.to_string();
        source = inner.source();
    }
    if error.is_connect() {
        *sent = false;
        return fault(FaultKind::Unreachable, false, format!("no connection: {deepest}"));
    }
    let kind = if error.is_timeout() { FaultKind::TimedOut } else { FaultKind::Lost };
    fault(kind, *sent, format!("the answer was lost: {deepest}"))
}

/// Whether TLS failed. An I/O error hides what it was made of: its source is the source of that.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(hidden) => is_tls(hidden),
        None => error.is::<rustls::Error>(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::model::provider::Permit;
    use crate::plugin::io::address::Guard;

    #[tokio::test]
    async fn a_body_that_stands_still_is_timed_out_before_the_guests_own_limit() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let client = builder(&Guard::new(&[Permit::Loopback])).build().expect("a client");
        let (answer, silent) = tokio::join!(client.get(url).send(), async {
            let (mut peer, _) = listener.accept().await.expect("a client");
            let read = peer.read(&mut [0; 1024]).await.expect("a request");
            assert!(read > 0);
            peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await.expect("it listens");
            peer
        });
        let reading = tokio::spawn(read(answer.expect("a head")));
        // Polled once, so that its clock runs.
        tokio::task::yield_now().await;
        tokio::time::pause();
        tokio::time::advance(origin::BETWEEN_PIECES).await;
        tokio::time::resume();
        let fault = reading.await.expect("no panic").expect_err("it stands still");
        assert_eq!((fault.kind, fault.sent), (FaultKind::TimedOut, true), "{}", fault.message);
        drop(silent);
    }
}
