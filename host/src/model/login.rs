//! The login of a proxy: derived from a key and the identity, so that it is stored nowhere.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::secret::SecretBytes;
use super::spec_hash::hex;

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// User and password of a proxy: letters and digits only, since several proxies mangle anything else
/// (tinyproxy/tinyproxy#229, #271, #377).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub username: String,
    /// The password.
    pub password: SecretBytes,
}

/// A key from which logins are derived.
#[derive(Clone, Debug)]
pub struct LoginKey {
    /// Its id, kept in the status of what was made with it.
    pub id: String,
    /// 32 random bytes.
    pub key: SecretBytes,
}

impl LoginKey {
    /// A key; its id follows from it, so that no other key goes by the same.
    pub fn new(key: SecretBytes) -> Self {
        let mut this = Self { id: String::new(), key };
        this.id = format!("login-{}", hex(&this.mac(&[b"id"])[..4]));
        this
    }

    /// The login of one incarnation of one proxy.
    pub fn derive(&self, proxy_uid: &str, incarnation: u32) -> Login {
        let username = base62(&self.derive_part("username", proxy_uid, incarnation), 12);
        let password = base62(&self.derive_part("password", proxy_uid, incarnation), 32);
        // A leading letter, since some proxies read a leading digit as something else.
        Login { username: format!("px{username}"), password: password.into() }
    }

    /// Id of the key and a digest of the login under it, so that a changed login is noticed and a weak one cannot be
    /// guessed from a status.
    pub fn digest(&self, login: &Login) -> String {
        let digest = self.mac(&[
            b"digest",
            &(login.username.len() as u64).to_be_bytes(),
            login.username.as_bytes(),
            login.password.expose(),
        ]);
        format!("{}:{}", self.id, hex(&digest[..16]))
    }

    fn derive_part(&self, what: &str, proxy_uid: &str, incarnation: u32) -> [u8; 32] {
        self.mac(&[what.as_bytes(), b"\0", proxy_uid.as_bytes(), b"\0", &incarnation.to_be_bytes()])
    }

    fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        // HMAC takes keys of every length, so this cannot fail.
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.expose()).expect("HMAC takes any key length");
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

/// The first `len` base-62 digits of a number of 32 bytes (43 digits hold it).
pub fn base62(bytes: &[u8; 32], len: usize) -> String {
    let mut number = *bytes;
    let mut out = String::with_capacity(len);
    for _ in 0..len {
        let mut remainder = 0u32;
        for byte in &mut number {
            let value = remainder << 8 | u32::from(*byte);
            *byte = (value / 62) as u8;
            remainder = value % 62;
        }
        out.push(char::from(BASE62[remainder as usize]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_key(byte: u8) -> LoginKey {
        LoginKey { id: "k1".into(), key: vec![byte; 32].into() }
    }

    #[test]
    fn a_login_depends_on_key_proxy_and_incarnation_alone() {
        let login = mk_key(1).derive("uid-1", 0);
        assert_eq!(login, mk_key(1).derive("uid-1", 0));
        for other in [mk_key(2).derive("uid-1", 0), mk_key(1).derive("uid-2", 0), mk_key(1).derive("uid-1", 1)] {
            assert_ne!(login.password, other.password);
            assert_ne!(login.username, other.username);
        }
    }

    #[test]
    fn a_password_is_32_letters_and_digits() {
        let login = mk_key(7).derive("uid", 3);
        let password = login.password.expose_line().unwrap();
        assert_eq!(password.len(), 32);
        assert!(password.chars().all(|c| c.is_ascii_alphanumeric()));
    }

    #[test]
    fn a_digest_depends_on_key_user_and_password_and_names_its_key() {
        let login =
            |username: &str, password: &str| Login { username: username.into(), password: password.to_owned().into() };
        let digest = mk_key(1).digest(&login("ann", "secret"));
        assert!(digest.starts_with("k1:") && !digest.contains("secret"));
        assert_eq!(digest, mk_key(1).digest(&login("ann", "secret")));
        assert_ne!(digest, mk_key(2).digest(&login("ann", "secret")));
        assert_ne!(digest, mk_key(1).digest(&login("ann", "secret2")));
        assert_ne!(digest, mk_key(1).digest(&login("anns", "ecret")));
    }

    #[test]
    fn debug_shows_no_password() {
        let login = mk_key(7).derive("uid", 3);
        assert!(!format!("{login:?}").contains(login.password.expose_line().unwrap()));
    }
}
