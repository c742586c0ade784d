//! A value that no log shows.

use std::fmt;

/// Bytes of a credential. `Debug` shows none of them, there is no `Display`, and they are overwritten when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// The value itself.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The value as text without the line end that editors leave; `None` when it is not UTF-8.
    pub fn expose_line(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok().map(|text| text.trim_end_matches(['\r', '\n']))
    }
}

impl From<Vec<u8>> for SecretBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<String> for SecretBytes {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.0.fill(0);
        std::hint::black_box(&self.0);
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// What replaces a secret in text.
pub const REDACTED: &str = "[redacted]";

/// Replaces each of `secrets` in `text`. Values under 4 bytes stay: replacing them would tear ordinary words apart and
/// tell the value.
pub fn scrub(text: &str, secrets: &[SecretBytes]) -> String {
    let mut out = text.to_owned();
    for secret in secrets {
        if let Some(value) = secret.expose_line().filter(|value| value.len() >= 4 && out.contains(value)) {
            out = out.replace(value, REDACTED);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_never_shows_the_value() {
        assert_eq!(format!("{:?}", SecretBytes::from("hunter2".to_owned())), "<secret>");
    }

    #[test]
    fn scrub_replaces_every_occurrence() {
        let secrets = [SecretBytes::from("s3cr3t\n".to_owned())];
        assert_eq!(scrub("a s3cr3t, again s3cr3t", &secrets), "a [redacted], again [redacted]");
    }
}
