//! Silence as a deadline: one clock per client that every byte winds up again.
//!
//! A limit on the whole of a connection would cut long downloads, and a limit on each read would need one around every
//! await; this holds for requests, bodies and tunnels alike.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// When a connection last moved a byte. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Activity {
    begun: Instant,
    /// Milliseconds after `begun`.
    last: Arc<AtomicU64>,
}

impl Activity {
    /// A connection that moved a byte just now.
    pub(super) fn begin() -> Self {
        Self { begun: Instant::now(), last: Arc::default() }
    }

    fn touch(&self) {
        let millis = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        // Only a time is shared, no data behind it: no order is needed.
        self.last.store(millis, Ordering::Relaxed);
    }

    /// Returns once no byte has moved for `limit`.
    pub(super) async fn quiet_for(&self, limit: Duration) {
        loop {
            let due = self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed)) + limit;
            if Instant::now() >= due {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }
}

/// A stream whose bytes count as activity.
#[derive(Debug)]
pub(super) struct Watched<S> {
    inner: S,
    activity: Activity,
}

impl<S> Watched<S> {
    pub(super) fn new(inner: S, activity: Activity) -> Self {
        Self { inner, activity }
    }

    fn noted(&self, written: io::Result<usize>) -> io::Result<usize> {
        if matches!(written, Ok(count) if count > 0) {
            self.activity.touch();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.activity.touch();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf));
        Poll::Ready(self.noted(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs));
        Poll::Ready(self.noted(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
