//! Tokens that the host asks for itself: kept while they are good, and renewed before they end.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::model::secret::SecretBytes;
use crate::plugin::grants::{Token, TokenError};

/// Part of its life after which a token is renewed, in percent.
const RENEW_AT: u32 = 80;
/// After a renewal that failed while the old token is still good.
const RETRY: Duration = Duration::from_secs(10);

/// One token for all requests of a connection. Whoever comes while it is asked for waits, and shares what comes of it.
#[derive(Default)]
pub(super) struct TokenCache(Mutex<State>);

#[derive(Default)]
struct State {
    kept: Option<Kept>,
    /// The last attempt that failed: when it ended, for which credential, how.
    failed: Option<(Instant, [u8; 32], TokenError)>,
}

struct Kept {
    value: SecretBytes,
    /// What it was asked for with; another credential asks anew.
    made_from: [u8; 32],
    renew: Instant,
    end: Instant,
}

impl TokenCache {
    /// The token, asked for by `fetch` when there is none or it is old.
    pub async fn get(
        &self,
        made_from: [u8; 32],
        fetch: impl Future<Output = Result<Token, TokenError>>,
    ) -> Result<SecretBytes, TokenError> {
        let came = Instant::now();
        let mut state = self.0.lock().await;
        let now = Instant::now();
        if let Some(kept) = state.kept.as_ref().filter(|kept| kept.made_from == made_from && now < kept.renew) {
            return Ok(kept.value.clone());
        }
        if let Some((ended, of, error)) = &state.failed
            && *ended >= came
            && *of == made_from
        {
            return Err(error.clone());
        }
        match fetch.await {
            Ok(Token { value, lifetime }) => {
                let now = Instant::now();
                let renew = now + lifetime * RENEW_AT / 100;
                state.kept = Some(Kept { value: value.clone(), made_from, renew, end: now + lifetime });
                Ok(value)
            }
            Err(error) => {
                let now = Instant::now();
                if let Some(kept) = state.kept.as_mut().filter(|kept| kept.made_from == made_from && now < kept.end) {
                    tracing::warn!(%error, "a token could not be renewed; the old one is used while it is good");
                    kept.renew = (now + RETRY).min(kept.end);
                    return Ok(kept.value.clone());
                }
                state.failed = Some((now, made_from, error.clone()));
                Err(error)
            }
        }
    }

    /// A backend refused this token: the next request asks for another.
    pub async fn forget(&self, value: &SecretBytes) {
        let mut state = self.0.lock().await;
        if state.kept.as_ref().is_some_and(|kept| kept.value == *value) {
            state.kept = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const KEY: [u8; 32] = [1; 32];

    /// Answers tokens `1`, `2`, … that are good for 100 s.
    async fn next(count: &AtomicU32) -> Result<Token, TokenError> {
        tokio::task::yield_now().await;
        let value = (count.fetch_add(1, Ordering::SeqCst) + 1).to_string();
        Ok(Token { value: value.into(), lifetime: Duration::from_secs(100) })
    }

    async fn failing(count: &AtomicU32) -> Result<Token, TokenError> {
        tokio::task::yield_now().await;
        count.fetch_add(1, Ordering::SeqCst);
        Err(TokenError::Unavailable("down".into()))
    }

    fn text(value: Result<SecretBytes, TokenError>) -> String {
        value.expect("a token").expose_line().expect("text").to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_asked_for_once_and_renewed_at_four_fifths_of_its_life() {
        let (cache, count) = (TokenCache::default(), AtomicU32::new(0));
        let all = futures::future::join_all((0..50).map(|_| cache.get(KEY, next(&count)))).await;
        assert!(all.into_iter().all(|token| text(token) == "1"));
        tokio::time::advance(Duration::from_secs(79)).await;
        assert_eq!(text(cache.get(KEY, next(&count)).await), "1");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(text(cache.get(KEY, next(&count)).await), "2");
        assert_eq!(text(cache.get([2; 32], next(&count)).await), "3", "another credential");
        cache.forget(&"2".to_owned().into()).await;
        assert_eq!(text(cache.get([2; 32], next(&count)).await), "3", "an older one was refused");
        cache.forget(&"3".to_owned().into()).await;
        assert_eq!(text(cache.get([2; 32], next(&count)).await), "4");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_cannot_be_renewed_is_used_to_its_end() {
        let (cache, count) = (TokenCache::default(), AtomicU32::new(0));
        assert_eq!(text(cache.get(KEY, next(&count)).await), "1");
        tokio::time::advance(Duration::from_secs(85)).await;
        let tried = AtomicU32::new(0);
        for _ in 0..3 {
            assert_eq!(text(cache.get(KEY, failing(&tried)).await), "1");
        }
        assert_eq!(tried.load(Ordering::SeqCst), 1, "not asked for at every request");
        tokio::time::advance(Duration::from_secs(16)).await;
        assert!(cache.get(KEY, failing(&tried)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_share_a_failure() {
        let (cache, count) = (TokenCache::default(), AtomicU32::new(0));
        let all = futures::future::join_all((0..50).map(|_| cache.get(KEY, failing(&count)))).await;
        assert!(all.iter().all(Result::is_err));
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
