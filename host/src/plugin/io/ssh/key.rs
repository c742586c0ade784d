//! The operator's private keys.

use std::sync::Arc;

use russh::keys::{Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, decode_secret_key};

use super::known_hosts::describe;
use crate::model::secret::SecretBytes;

/// A private key, ready to sign.
#[derive(Clone)]
pub struct ClientKey(Arc<PrivateKey>);

impl ClientKey {
    /// Reads a key: OpenSSH's format, or PEM with PKCS#1, PKCS#8 or SEC1. The error says what it is instead and what to do,
    /// and holds nothing of it.
    pub fn parse(bytes: &SecretBytes) -> Result<Self, &'static str> {
        let text =
            std::str::from_utf8(bytes.expose()).map_err(|_| "is no text; give the file that ssh-keygen wrote")?;
        // Editors and web forms change line ends and add blanks; the decoder wants its lines exact.
        let lines: Vec<_> = text.trim_start_matches('\u{feff}').lines().map(str::trim).collect();
        let text = SecretBytes::from(lines.join("\n"));
        let text = text.expose_line().unwrap_or_default().trim();
        if text.is_empty() {
            return Err("is empty");
        }
        if is_public(text) {
            return Err("holds a public key; give the private one, the file without .pub");
        }
        if text.starts_with("PuTTY-User-Key-File") {
            return Err("is a key of PuTTY; convert it: puttygen KEY -O private-openssh -o NEW");
        }
        if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
            return Err(PASSPHRASE);
        }
        let key = decode_secret_key(text, None).map_err(|error| match error {
            russh::keys::Error::KeyIsEncrypted => PASSPHRASE,
            _ => "is no private key in OpenSSH's format or PEM (PKCS#1, PKCS#8, SEC1)",
        })?;
        match key.algorithm() {
            Algorithm::Ed25519 | Algorithm::Ecdsa { .. } | Algorithm::Rsa { .. } => Ok(Self(Arc::new(key))),
            _ => Err("is a key of another type than ed25519, ecdsa and rsa; make one: ssh-keygen -t ed25519"),
        }
    }

    /// Type and fingerprint of its public half, for people.
    pub fn describe(&self) -> String {
        describe(self.0.public_key())
    }

    /// Whether it must be told which hash to sign with.
    pub fn is_rsa(&self) -> bool {
        self.0.algorithm().is_rsa()
    }

    /// The key with the hash for its signature, where it is an RSA key.
    pub fn signing(&self, hash: HashAlg) -> PrivateKeyWithHashAlg {
        PrivateKeyWithHashAlg::new(self.0.clone(), Some(hash))
    }
}

const PASSPHRASE: &str = "is protected by a passphrase, which nobody is there to type; give a key without one: ssh-keygen -p -N '' -f COPY_OF_THE_KEY";

fn is_public(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.contains("PUBLIC KEY")
        || ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"].iter().any(|kind| first.starts_with(kind))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn mk_key(dir: &Path, args: &[&str]) -> Vec<u8> {
        let file = dir.join(format!("key-{}", args.join("-").replace(['/', ' '], "")));
        let made = Command::new("ssh-keygen").args(["-q", "-f"]).arg(&file).args(args).output().expect("ssh-keygen");
        assert!(made.status.success(), "{args:?}: {}", String::from_utf8_lossy(&made.stderr));
        std::fs::read(file).expect("the key")
    }

    fn error(bytes: impl Into<Vec<u8>>) -> &'static str {
        ClientKey::parse(&bytes.into().into()).err().expect("it is refused")
    }

    #[test]
    fn every_type_and_format_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        for kind in [
            vec!["-t", "ed25519"],
            vec!["-t", "ecdsa", "-b", "256"],
            vec!["-t", "ecdsa", "-b", "384"],
            vec!["-t", "ecdsa", "-b", "521"],
            vec!["-t", "rsa", "-b", "2048"],
        ] {
            for format in ["RFC4716", "PEM", "PKCS8"] {
                let mut args = kind.clone();
                args.extend(["-m", format, "-N", ""]);
                let key = mk_key(dir.path(), &args);
                let text = String::from_utf8(key).expect("PEM is text");
                for form in
                    [text.clone(), text.trim_end().to_owned(), text.replace('\n', "\r\n"), format!("\n{text}\n\n")]
                {
                    let key = ClientKey::parse(&form.into()).unwrap_or_else(|e| panic!("{args:?}: {e}"));
                    assert!(key.describe().contains(" SHA256:"), "{}", key.describe());
                }
            }
        }
    }

    #[test]
    fn a_passphrase_is_told_in_every_format() {
        let dir = tempfile::tempdir().expect("a folder");
        for format in ["RFC4716", "PEM", "PKCS8"] {
            let key = mk_key(dir.path(), &["-t", "rsa", "-b", "2048", "-m", format, "-N", "secret"]);
            assert!(error(key).contains("passphrase"), "{format}");
        }
    }

    #[test]
    fn what_is_no_private_key_is_told_as_what_it_is() {
        assert!(error("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA me@here\n").contains("public key"));
        assert!(error("-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n").contains("public key"));
        assert!(error("---- BEGIN SSH2 PUBLIC KEY ----\n").contains("public key"));
        assert!(error("PuTTY-User-Key-File-3: ssh-ed25519\n").contains("PuTTY"));
        assert!(error("").contains("empty"));
        assert!(error([0xff, 0xfe, 0x00]).contains("no text"));
        for nonsense in [
            "hello",
            "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----\n",
            "-----BEGIN PRIVATE KEY-----\n*\n-----END PRIVATE KEY-----",
        ] {
            assert!(error(nonsense).contains("no private key"), "{nonsense}");
        }
    }
}
