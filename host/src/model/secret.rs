//! A value that no log shows.

use std::cmp::Reverse;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

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

/// Shorter ones are not looked for: to replace them would tear ordinary words apart and tell the value.
const LEAST: usize = 4;
/// Shorter parts of a secret, or codes of one, are not: they would be found in what has nothing to do with it.
const LEAST_PART: usize = 8;

/// Replaces each of `secrets` in `text`: as it is, as a JSON string quotes it, each of its lines, and in base64, alone or
/// within something longer, as the header of an HTTP login is.
pub fn scrub(text: &str, secrets: &[SecretBytes]) -> String {
    let mut out = text.to_owned();
    for secret in secrets {
        for form in forms(secret) {
            if out.contains(&form) {
                out = out.replace(&form, REDACTED);
            }
        }
    }
    out
}

/// How a secret may stand in a text; the longest first.
fn forms(secret: &SecretBytes) -> Vec<String> {
    let Some(value) = secret.expose_line().filter(|value| value.len() >= LEAST) else { return vec![] };
    let quoted = serde_json::Value::from(value).to_string();
    let mut forms = vec![value.to_owned(), quoted[1..quoted.len() - 1].to_owned()];
    forms.extend(value.lines().filter(|line| line.len() >= LEAST_PART).map(str::to_owned));
    for before in 0..3 {
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let code = engine.encode([&[0; 3][..before], value.as_bytes()].concat());
            // Six bits each: those that the bytes before and after it have a part in are not its own.
            let own = (before * 8).div_ceil(6)..(before + value.len()) * 8 / 6;
            forms.push(code[own].to_owned());
        }
    }
    forms.retain(|form| form == value || form.len() >= LEAST_PART);
    forms.sort_by_key(|form| Reverse(form.len()));
    forms.dedup();
    forms
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

    #[test]
    fn scrub_knows_a_secret_quoted_cut_into_lines_and_in_base64() {
        let secrets = [SecretBytes::from("first \"line\"\nand the second?>".to_owned())];
        for text in [
            r#"{"key":"first \"line\"\nand the second?>"}"#.to_owned(),
            "key: |\n  first \"line\"\n  and the second?>".to_owned(),
        ] {
            let told = scrub(&text, &secrets);
            assert!(told.contains(REDACTED) && !told.contains("first") && !told.contains("second"), "{told}");
        }
        let secrets = [SecretBytes::from("Pa55word?>~".to_owned())];
        for user in ["", "u", "us", "use", "user"] {
            for after in ["", "!", "!!", "!!!"] {
                for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
                    let code = engine.encode(format!("{user}:Pa55word?>~{after}"));
                    let told = scrub(&format!("Basic {code}="), &secrets);
                    assert!(told.contains(REDACTED), "{told}");
                    // What is left is neither the whole nor most of it.
                    let left = told.replace("Basic ", "").replace(REDACTED, "").replace('=', "");
                    assert!(left.len() <= code.len() - 12, "{told}");
                }
            }
        }
    }

    #[test]
    fn scrub_leaves_what_only_resembles_a_short_secret() {
        let secrets = [SecretBytes::from("abcd".to_owned()), SecretBytes::from("abc".to_owned())];
        assert_eq!(scrub("abc YWJjZA abcd", &secrets), "abc YWJjZA [redacted]");
    }
}
