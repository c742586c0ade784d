//! Digests of what a registry holds.

use std::fmt;

use sha2::{Digest, Sha256, Sha512};

use crate::model::spec_hash::hex;

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pin {
    Sha256(String),
    Sha512(String),
}

impl Pin {
    /// `sha256:…` or `sha512:…`; none of any other.
    pub fn parse(text: &str) -> Option<Self> {
        let (algorithm, value) = text.split_once(':')?;
        let is_hex = value.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match (algorithm, value.len()) {
            ("sha256", 64) if is_hex => Some(Self::Sha256(value.to_owned())),
            ("sha512", 128) if is_hex => Some(Self::Sha512(value.to_owned())),
            _ => None,
        }
    }

    /// Of the name of a kept file.
    pub fn of_file(stem: &str) -> Option<Self> {
        Self::parse(&stem.split_once('-').map_or_else(|| format!("sha256:{stem}"), |(a, value)| format!("{a}:{value}")))
    }

    /// The name of a kept file, without its ending.
    pub fn file(&self) -> String {
        match self {
            Self::Sha256(value) => value.clone(),
            Self::Sha512(value) => format!("sha512-{value}"),
        }
    }

    /// Whether these are the bytes.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Sha256(value) => hex(&Sha256::digest(bytes)) == *value,
            Self::Sha512(value) => hex(&Sha512::digest(bytes)) == *value,
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(value) => write!(f, "sha256:{value}"),
            Self::Sha512(value) => write!(f, "sha512:{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_what_it_says_and_nothing_else() {
        let of_x = [format!("sha256:{}", hex(&Sha256::digest(b"x"))), format!("sha512:{}", hex(&Sha512::digest(b"x")))];
        for text in &of_x {
            let pin = Pin::parse(text).expect("a digest");
            assert!(pin.fits(b"x") && !pin.fits(b"y"));
            assert_eq!((pin.to_string(), Pin::of_file(&pin.file())), (text.clone(), Some(pin.clone())));
            assert!(!pin.file().contains([':', '/']), "{}", pin.file());
        }
        let half = "0a".repeat(32);
        for wrong in [
            half.clone(),
            format!("sha512:{half}"),
            format!("sha256:{}", half.to_uppercase()),
            format!("md5:{half}"),
            "sha256:../../etc/passwd".into(),
            String::new(),
        ] {
            assert_eq!(Pin::parse(&wrong), None, "{wrong}");
        }
        assert_eq!(Pin::of_file("../x"), None);
    }
}
