//! The page of a proxy that answers everything itself, as captive portals and hijacked proxies do.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What the page says.
pub(super) const PAGE: &str = "<!doctype html><title>Welcome</title><p>This is not the page you asked for.</p>\n";

/// Its media type.
pub(super) const MEDIA_TYPE: &str = "text/html; charset=utf-8";

/// Answers inside a tunnel: whatever the client says first, it gets the page. A client that speaks TLS sees its handshake
/// fail, which is what it would see with the real thing.
pub(super) async fn answer(client: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let mut first = [0u8; 4096];
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{PAGE}",
        PAGE.len()
    );
    // Whoever does not listen any more is gone; there is nothing to make good.
    let _ = async {
        let _said = client.read(&mut first).await?;
        client.write_all(head.as_bytes()).await?;
        client.shutdown().await
    }
    .await;
}
