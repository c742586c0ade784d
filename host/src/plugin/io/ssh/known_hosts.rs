//! Pinned host keys, in the format of OpenSSH's `known_hosts`.
//!
//! Read as OpenSSH reads it, with two differences, both stricter: a line without a port holds for port 22 alone, and lines
//! marked `@cert-authority` are not used.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PublicKey};
use sha1::Sha1;

/// What is pinned for one host and port.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    keys: Vec<PublicKey>,
    revoked: Vec<PublicKey>,
    /// Numbers of lines that are for this host and of no use, with the reason.
    unused: Vec<(usize, &'static str)>,
}

/// What the pins say of a key that a server presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is one of the pinned ones.
    Pinned,
    /// Nothing is pinned for this host.
    Unknown,
    /// Other keys are pinned for this host.
    Changed,
    /// The line says that it must not be used any more.
    Revoked,
}

impl Pins {
    /// The lines of `text` that are about this host and port.
    pub fn find(text: &str, host: &str, port: u16) -> Self {
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        let name = if port == 22 { host.clone() } else { format!("[{host}]:{port}") };
        let mut pins = Self::default();
        for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut fields = line.split_ascii_whitespace().peekable();
            let marker = fields.next_if(|field| field.starts_with('@'));
            let (Some(hosts), Some(kind), Some(blob)) = (fields.next(), fields.next(), fields.next()) else {
                pins.unused.push((number, "is incomplete"));
                continue;
            };
            if !matches(hosts, &name) {
                if name != host && matches(hosts, &host) {
                    pins.unused.push((number, "names the host without this port"));
                }
                continue;
            }
            let Ok(key) = PublicKey::from_openssh(&format!("{kind} {blob}")) else {
                pins.unused.push((number, "holds no key that can be read"));
                continue;
            };
            match marker {
                None if algorithms_of(&key).is_empty() => pins.unused.push((number, "holds a key of another type")),
                None => pins.keys.push(key),
                Some("@revoked") => pins.revoked.push(key),
                Some("@cert-authority") => pins.unused.push((number, "is a @cert-authority, which is not supported")),
                Some(_) => pins.unused.push((number, "has an unknown marker")),
            }
        }
        let revoked = std::mem::take(&mut pins.revoked);
        pins.keys.retain(|key| !holds(&revoked, key));
        pins.revoked = revoked;
        pins
    }

    /// The host key algorithms to ask the server for: those of the pinned keys, so that it presents one of them. All that
    /// are safe when nothing is pinned, so that the error can name a key.
    pub fn algorithms(&self) -> Vec<Algorithm> {
        let known = known_algorithms();
        if self.keys.is_empty() {
            return known;
        }
        let wanted: Vec<_> = self.keys.iter().flat_map(algorithms_of).collect();
        known.into_iter().filter(|algorithm| wanted.contains(algorithm)).collect()
    }

    /// What this key is.
    pub fn judge(&self, key: &PublicKey) -> Verdict {
        if holds(&self.revoked, key) {
            Verdict::Revoked
        } else if holds(&self.keys, key) {
            Verdict::Pinned
        } else if self.keys.is_empty() {
            Verdict::Unknown
        } else {
            Verdict::Changed
        }
    }

    /// The pinned keys, for people: type and fingerprint of each.
    pub fn pinned(&self) -> String {
        let all: Vec<_> = self.keys.iter().map(describe).collect();
        all.join(", ")
    }

    /// Why lines that seem to be about this host do not count, for people; empty when there are none.
    pub fn remark(&self) -> String {
        let few: Vec<_> = self.unused.iter().take(3).map(|(number, why)| format!("line {number} {why}")).collect();
        if few.is_empty() { String::new() } else { format!(" (in knownHosts, {})", few.join("; ")) }
    }
}

/// Type and SHA256 fingerprint of a key, as `ssh-keygen -l` shows it.
pub fn describe(key: &PublicKey) -> String {
    format!("{} {}", key.algorithm(), key.fingerprint(HashAlg::Sha256))
}

fn holds(keys: &[PublicKey], key: &PublicKey) -> bool {
    keys.iter().any(|known| known.key_data() == key.key_data())
}

/// Every host key algorithm that is asked for, best first. `ssh-rsa`, which signs with SHA-1, is not.
fn known_algorithms() -> Vec<Algorithm> {
    vec![
        Algorithm::Ed25519,
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
        Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
        Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
    ]
}

/// The algorithms with which a key signs.
fn algorithms_of(key: &PublicKey) -> Vec<Algorithm> {
    let algorithm = key.algorithm();
    // An RSA key is of type ssh-rsa and signs with either hash.
    let rsa = matches!(algorithm, Algorithm::Rsa { .. });
    let signs = |known: &Algorithm| if rsa { matches!(known, Algorithm::Rsa { .. }) } else { *known == algorithm };
    known_algorithms().into_iter().filter(signs).collect()
}

/// Whether the first field of a line is about this name.
fn matches(hosts: &str, name: &str) -> bool {
    if let Some(hash) = hosts.strip_prefix("|1|") {
        return is_hash_of(hash, name).unwrap_or(false);
    }
    let mut found = false;
    for pattern in hosts.split(',') {
        match pattern.strip_prefix('!') {
            Some(not) if fits(not, name) => return false,
            Some(_) => {}
            None => found |= fits(pattern, name),
        }
    }
    found
}

fn is_hash_of(salt_and_hash: &str, name: &str) -> Option<bool> {
    let (salt, hash) = salt_and_hash.split_once('|')?;
    let mut mac = Hmac::<Sha1>::new_from_slice(&STANDARD.decode(salt).ok()?).ok()?;
    mac.update(name.as_bytes());
    Some(mac.verify_slice(&STANDARD.decode(hash).ok()?).is_ok())
}

/// `*` fits any text and `?` any one character; case does not count.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase().into_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last star does not fit.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((after, from)) => {
                    *from += 1;
                    (p, n) = (*after, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIaS31jDiEbF/q+0C0NOAWaJUMfObLN6Y5BD1WrEySXy";
    const ED2: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGP4ZM69R1pVCGrIpkq45M1Rl8JzKRaVZ6w/lA2SROuA";
    const EC: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEwlTayWulIm+95ivz3jTWHCjD1BkFe11CDwVNn1fDxZMPewgNSSL7dR+t38NLd2CrB/ybAu8aaHQ21Vhn9FtQo=";

    fn mk_key(text: &str) -> PublicKey {
        PublicKey::from_openssh(text).expect("a good key")
    }

    fn judge(text: &str, host: &str, port: u16) -> Verdict {
        Pins::find(text, host, port).judge(&mk_key(ED))
    }

    #[test]
    fn lines_match_by_name_pattern_port_and_list() {
        let cases = [
            ("h.example", "h.example", 22, true),
            ("H.Example", "h.eXample", 22, true),
            ("h.example", "h.example", 2222, false),
            ("[h.example]:2222", "h.example", 2222, true),
            ("[h.example]:2222", "h.example", 22, false),
            ("a,h.example,b", "h.example", 22, true),
            ("*.example", "h.example", 22, true),
            ("*.example", "example", 22, false),
            ("h?.example", "h1.example", 22, true),
            ("h?.example", "h12.example", 22, false),
            ("*.example,!h.example", "h.example", 22, false),
            ("!h.example,*.example", "h.example", 22, false),
            ("!other.example,*.example", "h.example", 22, true),
            ("*", "h.example", 2222, true),
            ("10.0.0.*", "10.0.0.5", 22, true),
            ("::1", "::1", 22, true),
            ("[::1]:2222", "[::1]", 2222, true),
        ];
        for (hosts, host, port, known) in cases {
            let expected = if known { Verdict::Pinned } else { Verdict::Unknown };
            assert_eq!(judge(&format!("{hosts} {ED} comment"), host, port), expected, "{hosts} for {host}:{port}");
        }
    }

    /// Made by `ssh-keygen -H` of lines for `h.example` and `[h.example]:2222`.
    #[test]
    fn hashed_lines_match() {
        let plain = "|1|OP6uDXP7qVM3nO9e+3ITg94+E9w=|sO1jdrpBPjQ/+/xlqjxwekuxTEs=";
        let with_port = "|1|ugK7wlAdrMDQK57pK2heLKJmgFA=|jmGOZRDQ6fineBIbc0u9hc5M38k=";
        assert_eq!(judge(&format!("{plain} {ED}"), "h.example", 22), Verdict::Pinned);
        assert_eq!(judge(&format!("{with_port} {ED}"), "H.example", 2222), Verdict::Pinned);
        assert_eq!(judge(&format!("{plain} {ED}"), "h.example", 2222), Verdict::Unknown);
        assert_eq!(judge(&format!("{plain} {ED}"), "other.example", 22), Verdict::Unknown);
        for broken in ["|1|", "|1|AAAA", "|1|!|!", "|1|AAAA|", "|2|AAAA|AAAA"] {
            assert_eq!(judge(&format!("{broken} {ED}"), "h", 22), Verdict::Unknown, "{broken}");
        }
    }

    #[test]
    fn several_keys_of_a_host_all_count_and_their_algorithms_are_asked_for() {
        let text = format!("h {EC}\r\nh {ED2}\r\n\r\n# h {ED}\r\n  h\t{ED} me@here\r\n");
        assert_eq!(judge(&text, "h", 22), Verdict::Pinned);
        let pins = Pins::find(&text, "h", 22);
        assert_eq!(pins.algorithms(), [Algorithm::Ed25519, Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 }]);
        let pins = Pins::find(&format!("h {EC}"), "h", 22);
        assert_eq!(pins.judge(&mk_key(ED)), Verdict::Changed);
        assert_eq!(pins.algorithms().len(), 1);
        assert_eq!(Pins::find("", "h", 22).algorithms().len(), 6);
    }

    #[test]
    fn a_revoked_key_is_refused_although_another_line_pins_it() {
        for text in [format!("h {ED}\n@revoked * {ED}"), format!("@revoked h {ED}\nh {ED}")] {
            assert_eq!(judge(&text, "h", 22), Verdict::Revoked);
        }
        assert_eq!(judge(&format!("h {ED}\n@revoked * {ED2}"), "h", 22), Verdict::Pinned);
    }

    #[test]
    fn lines_of_no_use_are_remarked_on() {
        let cases = [
            (format!("@cert-authority *.example {ED}"), "line 1 is a @cert-authority"),
            (format!("\nh.example {ED}"), "line 2 names the host without this port"),
            ("[h.example]:2222 ssh-ed25519 nonsense".into(), "line 1 holds no key"),
            (format!("@other [h.example]:2222 {ED}"), "unknown marker"),
            ("[h.example]:2222 ssh-ed25519".into(), "is incomplete"),
        ];
        for (text, expected) in cases {
            let port = if text.starts_with("@cert") { 22 } else { 2222 };
            let pins = Pins::find(&text, "h.example", port);
            assert_eq!(pins.judge(&mk_key(ED)), Verdict::Unknown, "{text}");
            assert!(pins.remark().contains(expected), "{text}: {}", pins.remark());
        }
    }
}
