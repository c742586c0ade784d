//! Secrets of the operator's namespace: fetched by name when they are used, never kept. Only those that hold the digests of
//! API tokens are followed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Client, Resource, ResourceExt};

use super::cache::{Cache, next, watched};
use super::store_error;
use crate::model::login::{Login, LoginKey};
use crate::model::manifest::SecretManifest;
use crate::model::provider::Source;
use crate::model::proxy::Proxy;
use crate::model::pulse::PULSE;
use crate::model::secret::SecretBytes;
use crate::model::{API_TOKEN_LABEL, PROVIDER_SECRET_LABEL};
use crate::plugin::grants::SecretError;
use crate::store::credentials::{FileRoots, login, provider_value};
use crate::store::{LabelledSecret, StoreError};

/// The Secret that holds the operator's own keys.
const KEYS: &str = "proxy-operator-key";
/// The key of it from which new logins are derived. Others that begin like it are those of before: what was made with them
/// goes on.
const LOGIN: &str = "login";

pub(super) struct Secrets {
    client: Client,
    own: Api<Secret>,
    namespace: String,
    tokens: Cache<Secret>,
    roots: FileRoots,
}

impl Secrets {
    pub fn new(client: Client, namespace: &str, files: Vec<PathBuf>) -> Self {
        let own: Api<Secret> = Api::namespaced(client.clone(), namespace);
        Self {
            tokens: Cache::new(own.clone()).labelled(&format!("{API_TOKEN_LABEL}=true")),
            own,
            client,
            namespace: namespace.to_owned(),
            roots: FileRoots::new(files),
        }
    }

    pub async fn fill(&self) -> Result<(), StoreError> {
        self.tokens.fill().await
    }

    pub async fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        match (&source.secret_ref, &source.file) {
            (Some(reference), _) => {
                provider_value(&self.get(&self.own, &self.namespace, &reference.name).await?, &reference.key)
            }
            (None, Some(path)) => self.roots.read(Path::new(path)),
            (None, None) => Err(SecretError::Missing("neither secretRef nor file is given".into())),
        }
    }

    pub async fn login(&self, namespace: &str, name: &str) -> Result<Login, SecretError> {
        let api = Api::namespaced(self.client.clone(), namespace);
        login(&self.get(&api, namespace, name).await?)
    }

    /// Writes a login into a Secret that the Proxy owns; one that it does not own is left alone.
    pub async fn publish(&self, proxy: &Proxy, name: &str, login: &Login) -> Result<(), StoreError> {
        let namespace = proxy.namespace().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        let what = format!("Secret {namespace}/{name}");
        let values = [("username", login.username.as_bytes()), ("password", login.password.expose())];
        let data: BTreeMap<String, ByteString> =
            values.map(|(key, value)| (key.to_owned(), ByteString(value.to_vec()))).into();
        let found = api.get_opt(name).await.map_err(|e| store_error(&what, e))?;
        let ours =
            |secret: &Secret| secret.owner_references().iter().any(|owner| Some(&owner.uid) == proxy.uid().as_ref());
        match found {
            Some(found) if !ours(&found) => Err(StoreError::Taken(format!(
                "{what} exists and is not this Proxy's: choose another name for spec.auth.publishSecret, or delete it"
            ))),
            Some(found) if found.data.as_ref() == Some(&data) => Ok(()),
            Some(mut found) => {
                found.data = Some(data);
                api.replace(name, &PostParams::default(), &found).await.map(drop).map_err(|e| store_error(&what, e))
            }
            None => {
                let metadata = ObjectMeta {
                    name: Some(name.to_owned()),
                    owner_references: proxy.controller_owner_ref(&()).map(|owner| vec![owner]),
                    ..ObjectMeta::default()
                };
                let secret = Secret { metadata, data: Some(data), ..Secret::default() };
                api.create(&PostParams::default(), &secret).await.map(drop).map_err(|e| store_error(&what, e))
            }
        }
    }

    /// The Secrets with the digests of API tokens.
    pub fn tokens(&self) -> Vec<LabelledSecret> {
        self.tokens
            .all()
            .iter()
            .map(|secret| {
                let SecretManifest { name, data, .. } = plain((**secret).clone());
                LabelledSecret { name, data }
            })
            .collect()
    }

    /// The keys from which logins are derived; made once, by whoever comes first.
    pub async fn login_keys(&self) -> Result<Vec<LoginKey>, StoreError> {
        let what = format!("Secret {KEYS}");
        let made = Secret {
            metadata: ObjectMeta { name: Some(KEYS.into()), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([(LOGIN.to_owned(), ByteString(rand::random::<[u8; 32]>().to_vec()))])),
            ..Secret::default()
        };
        let stored = match self.own.get_opt(KEYS).await.map_err(|e| store_error(&what, e))? {
            Some(found) => found,
            None => match self.own.create(&PostParams::default(), &made).await {
                Ok(created) => created,
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    self.own.get(KEYS).await.map_err(|e| store_error(&what, e))?
                }
                Err(error) => return Err(store_error(&what, error)),
            },
        };
        keys_in(plain(stored).data)
            .ok_or_else(|| StoreError::Unavailable(format!("{what} has no key {LOGIN} of 32 bytes: restore it")))
    }

    /// Tells of each change of a Secret or a mounted file that a Provider may use. Ends never.
    pub async fn follow(&self, changed: impl Fn()) {
        let providers = async {
            let labelled = watched(Some(&format!("{PROVIDER_SECRET_LABEL}=true")));
            let metadata: Api<PartialObjectMeta<Secret>> = Api::namespaced(self.client.clone(), &self.namespace);
            let mut stream = watcher(metadata, labelled).default_backoff().boxed();
            let beat = PULSE.of("watch");
            while let Some(event) = next(&mut stream, &beat).await {
                match event {
                    Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone) => changed(),
                    Ok(_) => {}
                    Err(error) => tracing::warn!(%error, "the watch of Secrets is taken up again"),
                }
            }
        };
        futures::future::join3(providers, self.roots.follow(&changed), self.tokens.follow(|_| {})).await;
    }

    async fn get(&self, api: &Api<Secret>, namespace: &str, name: &str) -> Result<SecretManifest, SecretError> {
        match api.get_opt(name).await {
            Ok(Some(secret)) => Ok(plain(secret)),
            Ok(None) => {
                Err(SecretError::Missing(format!("Secret {name} does not exist in namespace {namespace}: create it")))
            }
            Err(kube::Error::Api(status)) if status.code == 403 => Err(SecretError::Denied(format!(
                "the operator may not read Secret {name} in namespace {namespace}; to grant it: kubectl create role \
                 proxy-operator-{name} --verb=get --resource=secrets --resource-name={name} -n {namespace}"
            ))),
            Err(error) => Err(SecretError::Unreadable(format!("Secret {name} in namespace {namespace}: {error}"))),
        }
    }
}

/// The keys for logins, the newest first; none without that one.
fn keys_in(mut data: BTreeMap<String, SecretBytes>) -> Option<Vec<LoginKey>> {
    data.retain(|name, key| name.starts_with(LOGIN) && key.expose().len() >= 32);
    // It comes first, since the others' names begin with its own.
    data.contains_key(LOGIN).then(|| data.into_values().map(LoginKey::new).collect())
}

fn plain(secret: Secret) -> SecretManifest {
    let data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0.into())).collect();
    SecretManifest {
        name: secret.metadata.name.unwrap_or_default(),
        labels: secret.metadata.labels.unwrap_or_default(),
        data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_by_what_it_is_and_earlier_ones_stay_known() {
        let data = |keys: &[(&str, u8)]| {
            keys.iter().map(|(name, byte)| ((*name).to_owned(), SecretBytes::from(vec![*byte; 32]))).collect()
        };
        let ids = |keys| keys_in(data(keys)).unwrap().into_iter().map(|key| key.id).collect::<Vec<_>>();
        let first = ids(&[("login", 1)]);
        let rotated = ids(&[("login-2026", 1), ("login", 2), ("other", 3)]);
        assert_eq!((rotated.len(), &rotated[1]), (2, &first[0]));
        assert_ne!(rotated[0], first[0], "a key that was lost and made anew is another one");
        assert!(keys_in(data(&[("login-2026", 1)])).is_none());
        assert!(keys_in(BTreeMap::from([("login".to_owned(), SecretBytes::from(vec![1; 16]))])).is_none());
    }
}
