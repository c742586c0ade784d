//! A host and a port as somebody wrote them, made comparable.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A host, by name or address, and a port.
///
/// Two are equal when they were *written* alike: names without regard to case or a last dot, addresses by value. No name is
/// ever looked up to compare.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    host: String,
    port: u16,
}

/// Why a text is not a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No port, or not one of 1 to 65535.
    #[error("{0:?} needs a port from 1 to 65535, as in 127.0.0.1:8082 or [::1]:8082")]
    Port(String),
    /// No host, or one that can be neither a name nor an address.
    #[error("{0:?} needs a host name or an address before the port; IPv6 addresses go in brackets")]
    Host(String),
}

impl Target {
    /// The target at `host`, an IPv6 address with or without brackets, and `port`.
    pub fn new(host: &str, port: u16) -> Self {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let host = match bare.parse::<IpAddr>() {
            Ok(address) => address.to_string(),
            Err(_) => bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase(),
        };
        Self { host, port }
    }

    /// The host: a name in lower case, or an address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (host, port) = text.rsplit_once(':').ok_or_else(|| TargetError::Port(text.to_owned()))?;
        let port = match port.parse::<u16>() {
            Ok(port) if port > 0 && !text.ends_with(&format!("+{port}")) => port,
            _ => return Err(TargetError::Port(text.to_owned())),
        };
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let fits = match bracketed {
            Some(address) => matches!(address.parse(), Ok(IpAddr::V6(_))),
            None => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                !host.is_empty() && host.bytes().all(plain)
            }
        };
        if !fits {
            return Err(TargetError::Host(text.to_owned()));
        }
        Ok(Self::new(host, port))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_equal_when_written_alike() {
        for (one, other) in [
            ("Judge.Example:8082", "judge.example.:8082"),
            ("[::1]:80", "[0:0:0:0:0:0:0:1]:80"),
            ("127.0.0.1:1", "127.0.0.1:1"),
        ] {
            assert_eq!(one.parse::<Target>(), other.parse::<Target>());
        }
        assert_ne!("localhost:1".parse::<Target>(), "127.0.0.1:1".parse::<Target>());
        assert_ne!("a:1".parse::<Target>(), "a:2".parse::<Target>());
    }

    #[test]
    fn a_text_that_is_no_target_says_what_is_missing() {
        for text in ["judge", "judge:", "judge:0", "judge:65536", "judge:+80", "judge:http"] {
            assert!(matches!(text.parse::<Target>(), Err(TargetError::Port(_))), "{text}");
        }
        for text in [":80", "::1:80", "[::1:80", "[judge]:80", "a b:80", "user@host:80", "http://a:80"] {
            assert!(matches!(text.parse::<Target>(), Err(TargetError::Host(_))), "{text}");
        }
    }

    #[test]
    fn a_target_prints_as_it_is_parsed() {
        for text in ["judge.example:8082", "[::1]:80", "127.0.0.1:9"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
    }
}
