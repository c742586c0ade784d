//! A value that no log shows.

use std::cmp::Reverse;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::spec_hash::hex;

/// What stays as it is in a URL (RFC 3986, 2.3), and in JavaScript's `encodeURIComponent`.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const IN_URLS: [&AsciiSet; 2] =
    [UNRESERVED, &UNRESERVED.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')')];

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

/// Values that must stand in no text.
#[derive(Default)]
pub struct Known {
    values: Vec<SecretBytes>,
    /// How they may stand in a text, the longest first: one may be a part of another.
    forms: Vec<SecretBytes>,
}

impl From<Vec<SecretBytes>> for Known {
    fn from(values: Vec<SecretBytes>) -> Self {
        let mut forms: Vec<_> = values.iter().flat_map(forms).collect();
        forms.sort_by_key(|form| Reverse(form.len()));
        forms.dedup();
        Self { values, forms: forms.into_iter().map(SecretBytes::from).collect() }
    }
}

impl Known {
    /// One more.
    pub fn push(&mut self, value: SecretBytes) {
        if !self.values.contains(&value) {
            let mut values = std::mem::take(&mut self.values);
            values.push(value);
            *self = values.into();
        }
    }

    /// Replaces each of them in `text`: as it is, as a JSON string or a URL quotes it, each of its lines, and in hexadecimal and
    /// base64, alone or within something longer, as the header of an HTTP login is.
    pub fn scrub(&self, text: &str) -> String {
        let mut out = text.to_owned();
        for form in self.forms.iter().filter_map(|form| std::str::from_utf8(form.expose()).ok()) {
            if out.contains(form) {
                out = out.replace(form, REDACTED);
            }
        }
        out
    }

    /// The same of a text that may be as long as it likes, of which only the beginning counts: no more than `most` bytes of it
    /// are looked at, and what may be the beginning of a value at the end of those is left out.
    pub fn scrub_beginning(&self, text: &str, most: usize) -> String {
        if text.len() <= most {
            return self.scrub(text);
        }
        let scrubbed = self.scrub(&text[..text.floor_char_boundary(most)]);
        let longest = self.forms.first().map_or(0, |form| form.expose().len());
        scrubbed[..scrubbed.floor_char_boundary(scrubbed.len().saturating_sub(longest))].to_owned()
    }
}

/// How a secret may stand in a text.
fn forms(secret: &SecretBytes) -> Vec<String> {
    let bytes = secret.expose_line().map_or(secret.expose(), str::as_bytes);
    if bytes.len() < LEAST {
        return vec![];
    }
    let mut forms = vec![hex(bytes), hex(bytes).to_uppercase()];
    for before in 0..3 {
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let code = engine.encode([&[0; 3][..before], bytes].concat());
            // Six bits each: those that the bytes before and after it have a part in are not its own.
            let own = (before * 8).div_ceil(6)..(before + bytes.len()) * 8 / 6;
            forms.push(code[own].to_owned());
        }
    }
    if let Ok(value) = std::str::from_utf8(bytes) {
        let quoted = serde_json::Value::from(value).to_string();
        forms.push(quoted[1..quoted.len() - 1].to_owned());
        forms.extend(value.lines().filter(|line| line.len() >= LEAST_PART).map(str::to_owned));
        forms.extend(IN_URLS.iter().map(|kept| utf8_percent_encode(value, kept).to_string()));
        forms.push(url::form_urlencoded::byte_serialize(bytes).collect());
        // As it is, it is looked for however short it is.
        forms.retain(|form| form.len() >= LEAST_PART);
        forms.push(value.to_owned());
    } else {
        forms.retain(|form| form.len() >= LEAST_PART);
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrub(text: &str, secrets: &[SecretBytes]) -> String {
        Known::from(secrets.to_vec()).scrub(text)
    }

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

    #[test]
    fn scrub_knows_a_secret_that_is_a_part_of_another_one() {
        for secrets in [["proxy", "proxy-9f81c2d4"], ["proxy-9f81c2d4", "proxy"]] {
            let secrets = secrets.map(|text| SecretBytes::from(text.to_owned()));
            assert_eq!(scrub("proxy-9f81c2d4 of proxy", &secrets), "[redacted] of [redacted]");
        }
    }

    #[test]
    fn scrub_knows_a_secret_in_a_url_in_hexadecimal_and_as_bytes() {
        let secrets = [SecretBytes::from("p@ss w/rd!(1)-~*".to_owned())];
        for text in [
            "https://h/?token=p%40ss%20w%2Frd%21%281%29-~%2A",
            "https://h/?token=p%40ss%20w%2Frd!(1)-~*",
            "token=p%40ss+w%2Frd%21%281%29-%7E*&x=1",
            "70407373 7040737320772642128 7040737320772f7264212831292d7e2a",
            "7040737320772F7264212831292D7E2A",
        ] {
            assert!(scrub(text, &secrets).contains(REDACTED), "{text}");
        }
        let bytes = [SecretBytes::from((128..160).collect::<Vec<u8>>())];
        assert!(scrub(&format!("key {}", hex(bytes[0].expose())), &bytes).contains(REDACTED));
        assert!(scrub(&format!("key {}", STANDARD_NO_PAD.encode(bytes[0].expose())), &bytes).contains(REDACTED));
    }

    #[test]
    fn of_a_long_text_no_part_of_a_secret_is_left_where_it_is_cut() {
        let known = Known::from(vec![SecretBytes::from("secret-9f81c2d4".to_owned())]);
        for at in 80..120 {
            let text = format!("{}secret-9f81c2d4{}", "ä".repeat(at / 2), "x".repeat(100));
            let told = known.scrub_beginning(&text, 100);
            assert!(!told.contains("secr") && told.len() <= 100, "{told}");
        }
        assert_eq!(known.scrub_beginning("short", 100), "short");
    }
}
