//! User and password: kept out of logs, compared without telling how much of a guess was right.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::header::{HeaderMap, PROXY_AUTHORIZATION};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The user and password that a proxy asks for. Its `Debug` shows the user only.
#[derive(Clone)]
pub struct Login {
    /// The user; without a colon, which HTTP's Basic scheme could not carry (RFC 7617 §2).
    pub username: String,
    /// The password; at most 255 bytes when clients speak SOCKS5 (RFC 1929 §2).
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("username", &self.username).field("password", &"(redacted)").finish()
    }
}

impl Login {
    /// Whether this is the user and the password.
    pub(super) fn admits(&self, username: &[u8], password: &[u8]) -> bool {
        // Both are always compared, so that the time does not tell a wrong user from a wrong password.
        let user = same(self.username.as_bytes(), username);
        let word = same(self.password.as_bytes(), password);
        user & word
    }

    /// Whether a request's `Proxy-Authorization` holds this login (RFC 7617).
    pub(super) fn admits_request(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(PROXY_AUTHORIZATION) else {
            return false;
        };
        let Some((scheme, encoded)) = value.to_str().ok().and_then(|text| text.split_once(' ')) else {
            return false;
        };
        if !scheme.eq_ignore_ascii_case("basic") {
            return false;
        }
        let Ok(pair) = BASE64_STANDARD.decode(encoded.trim()) else {
            return false;
        };
        match pair.iter().position(|byte| *byte == b':') {
            Some(colon) => self.admits(&pair[..colon], &pair[colon + 1..]),
            None => false,
        }
    }
}

/// Compares two secrets in a time that depends on neither. Digests are compared, so that lengths do not show either.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    Sha256::digest(one).as_slice().ct_eq(Sha256::digest(other).as_slice()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_login() -> Login {
        Login { username: "crawler".into(), password: "s3cret:with:colons".into() }
    }

    fn admits(header: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(PROXY_AUTHORIZATION, header.parse().unwrap());
        mk_login().admits_request(&headers)
    }

    #[test]
    fn only_the_exact_pair_is_admitted() {
        let encoded = BASE64_STANDARD.encode("crawler:s3cret:with:colons");
        assert!(admits(&format!("Basic {encoded}")));
        assert!(admits(&format!("basic {encoded}")));
        for wrong in
            ["crawler:s3cret", "crawler:", "crawler", "Crawler:s3cret:with:colons", ":", "x:s3cret:with:colons"]
        {
            assert!(!admits(&format!("Basic {}", BASE64_STANDARD.encode(wrong))), "{wrong}");
        }
        for header in [format!("Bearer {encoded}"), encoded, "Basic".into(), "Basic ???".into()] {
            assert!(!admits(&header), "{header}");
        }
        assert!(!mk_login().admits_request(&HeaderMap::new()));
    }

    #[test]
    fn the_password_is_not_in_its_debug_output() {
        let shown = format!("{:?}", mk_login());
        assert!(shown.contains("crawler") && !shown.contains("s3cret"), "{shown}");
    }
}
