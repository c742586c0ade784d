//! The credentials of a pull Secret.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::model::secret::SecretBytes;
use crate::plugin::load::PullError;

/// Who asks a registry.
pub(super) struct Login {
    pub user: String,
    pub password: SecretBytes,
}

impl Login {
    /// For a registry, out of a `.dockerconfigjson`.
    pub fn of(config: &SecretBytes, host: &str) -> Result<Self, PullError> {
        #[derive(Deserialize)]
        struct Config {
            auths: HashMap<String, Entry>,
        }
        #[derive(Deserialize)]
        struct Entry {
            auth: Option<String>,
            username: Option<String>,
            password: Option<String>,
        }
        // serde's own words may quote what it met.
        let bad = || {
            PullError(
                "the pull Secret's .dockerconfigjson is not what kubectl create secret docker-registry writes".into(),
            )
        };
        let mut config: Config = serde_json::from_slice(config.expose()).map_err(|_| bad())?;
        let of_host = |key: &&String| {
            let key = key.trim_start_matches("https://").trim_start_matches("http://");
            key.split('/').next() == Some(host)
        };
        let Some(key) = config.auths.keys().find(of_host).cloned() else {
            let mut hosts: Vec<_> = config.auths.keys().map(String::as_str).collect();
            hosts.sort_unstable();
            return Err(PullError(format!(
                "the pull Secret has no credentials for {host}; it has some for: {}",
                hosts.join(", ")
            )));
        };
        let entry = config.auths.remove(&key).ok_or_else(bad)?;
        if let (Some(user), Some(password)) = (entry.username, entry.password) {
            return Ok(Self { user, password: password.into() });
        }
        let decoded = entry.auth.and_then(|auth| STANDARD.decode(auth).ok());
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(bad)?;
        let (user, password) = text.split_once(':').ok_or_else(bad)?;
        Ok(Self { user: user.to_owned(), password: password.to_owned().into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: &str, host: &str) -> Result<(String, String), String> {
        let login = Login::of(&config.to_owned().into(), host).map_err(|error| error.to_string())?;
        Ok((login.user, login.password.expose_line().expect("text").to_owned()))
    }

    #[test]
    fn credentials_are_those_of_the_registry_alone() {
        let both = r#"{"auths":{"https://one.example/v1/":{"auth":"YW5uOnMzY3JldDp4"},"two.example:5000":{"username":"bob","password":"pw"}}}"#;
        assert_eq!(of(both, "one.example"), Ok(("ann".into(), "s3cret:x".into())));
        assert_eq!(of(both, "two.example:5000"), Ok(("bob".into(), "pw".into())));
        let error = of(both, "three.example").unwrap_err();
        assert!(error.contains("no credentials for three.example") && !error.contains("s3cret"), "{error}");
        for nonsense in ["s3cret", "{}", r#"{"auths":{"one.example":{"auth":"s3cret"}}}"#] {
            let error = of(nonsense, "one.example").unwrap_err();
            assert!(error.contains("kubectl create secret docker-registry") && !error.contains("s3cret"), "{error}");
        }
    }
}
