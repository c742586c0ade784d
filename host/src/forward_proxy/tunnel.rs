//! Bytes both ways, until both sides are done or one breaks.

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};

/// Copies between client and target. One side closing its writing half closes the other's, and the rest flows on. Silence is
/// the business of the client's [`Activity`](super::activity::Activity).
pub(super) async fn relay(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    target: &mut (impl AsyncRead + AsyncWrite + Unpin),
) {
    match copy_bidirectional(client, target).await {
        Ok((sent, received)) => tracing::trace!(sent, received, "tunnel ended"),
        Err(error) => tracing::debug!(%error, "tunnel broke"),
    }
}
