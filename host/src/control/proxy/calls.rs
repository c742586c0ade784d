//! The calls of one Proxy: what is said to the plugin, and with which login.

use kube::ResourceExt;
use serde_json::Value;

use super::OwnLogin;
use super::beside::Beside;
use super::decide::{Answer, Call};
use super::driver::{Driver, LoginSecret};
use crate::model::error::{CallError, ErrorKind};
use crate::model::instance::{Request, check_schema};
use crate::model::login::{Login, LoginKey};
use crate::model::naming::{ProxyKey, identity};
use crate::model::proxy::{AuthMode, InstanceStatus, Proxy};
use crate::plugin::grants::SecretError;
use crate::plugin::handle::Handle;

impl Driver {
    /// The login that an instance of the proxy has: its own Secret's, its backend's, or the derived one.
    pub(super) async fn login(
        &self,
        proxy: &Proxy,
        instance: Option<&InstanceStatus>,
        keys: &[LoginKey],
        handle: Option<&Handle>,
        own: &OwnLogin,
    ) -> Result<Option<Login>, CallError> {
        if let Some(name) = instance.and_then(|i| i.login_secret.as_ref()) {
            return self.granted_login(proxy, name, handle).await.map(Some);
        }
        match (proxy.spec.auth.mode, own) {
            (_, OwnLogin::Read { login, .. }) => Ok(Some(login.clone())),
            (_, OwnLogin::Lacking(error)) => Err(error.clone()),
            (AuthMode::None | AuthMode::Secret, OwnLogin::Unused) => Ok(None),
            (AuthMode::Generated, OwnLogin::Unused) => {
                let InstanceStatus { incarnation, login_key, .. } = instance.cloned().unwrap_or_default();
                let key = match &login_key {
                    Some(id) => keys.iter().find(|k| k.id == *id),
                    None => keys.first(),
                };
                let key = key.ok_or_else(|| {
                    missing(
                        format!(
                            "the key {} that its login was derived from is gone: restore it, or rebuild the proxy",
                            login_key.unwrap_or_default()
                        ),
                        "LoginKeyMissing",
                    )
                })?;
                Ok(Some(key.derive(&proxy.uid().unwrap_or_default(), incarnation)))
            }
        }
    }

    /// The login that a backend keeps in a Secret. While its Provider is not ready, what was read last stands in.
    async fn granted_login(&self, proxy: &Proxy, name: &str, handle: Option<&Handle>) -> Result<Login, CallError> {
        let (key, secret) = (ProxyKey::of(proxy), LoginSecret::Granted(name.to_owned()));
        let Some(handle) = handle else {
            return self.last_login(&key, &secret).ok_or_else(|| {
                let provider = &proxy.spec.provider;
                let what = format!("its login is in a Secret of Provider {provider}, which is not ready");
                CallError::new(ErrorKind::Transient, what)
            });
        };
        let login = handle.granted_login(name).await?;
        self.remember_login(&key, secret, &login);
        Ok(login)
    }

    /// The login of `auth.secretRef`. What was read last stands in while the Secret cannot be read.
    pub(super) async fn own_login(&self, proxy: &Proxy, keys: &[LoginKey]) -> OwnLogin {
        if proxy.spec.auth.mode != AuthMode::Secret {
            return OwnLogin::Unused;
        }
        let Some(secret) = &proxy.spec.auth.secret_ref else {
            return OwnLogin::Lacking(missing("spec.auth.secretRef is missing".into(), "SecretMissing"));
        };
        let read = self.store.proxy_login(&proxy.namespace().unwrap_or_default(), secret).await;
        let (key, secret) = (ProxyKey::of(proxy), LoginSecret::Own(secret.clone()));
        let login = match (read, self.last_login(&key, &secret)) {
            (Ok(login), _) | (Err(SecretError::Unreadable(_)), Some(login)) => login,
            (Err(error), _) => return OwnLogin::Lacking(missing(error.to_string(), error.reason())),
        };
        self.remember_login(&key, secret, &login);
        OwnLogin::Read { digests: keys.iter().map(|key| key.digest(&login)).collect(), login }
    }

    pub(super) async fn call(
        &self,
        proxy: &Proxy,
        handle: &Handle,
        which: Option<Beside>,
        call: &Call,
        keys: &[LoginKey],
        own: &OwnLogin,
    ) -> Result<Answer, CallError> {
        let mut status = proxy.status.clone().unwrap_or_default();
        let instance = match which {
            None => status.instance.clone().unwrap_or_default(),
            Some(which) => which.of(&status).cloned().unwrap_or_else(|| InstanceStatus {
                // A place is asked for, for one that is not begun yet.
                incarnation: status.begin_incarnation(),
                ..InstanceStatus::default()
            }),
        };
        let identity = identity(self.store.installation(), proxy, &instance);
        let request = |login: Option<Login>| {
            Request::new(&proxy.spec, identity.clone(), login, must_reach(&self.judge), own.newest())
        };
        match call {
            Call::Validate => {
                let parameters = Value::Object(proxy.spec.parameters.clone());
                if let Err(errors) =
                    check_schema(&handle.plugin().description.parameters_schema, &parameters, "/parameters")
                {
                    return Ok(Answer::Validated(errors));
                }
                let verdict = handle.validate(Some(&request(None))).await?;
                Ok(Answer::Validated(verdict.err().unwrap_or_default()))
            }
            Call::Place(avoid) => handle.place(&request(None), avoid).await.map(Answer::Placed),
            Call::Create => {
                let login = self.login(proxy, Some(&instance), keys, Some(handle), own).await?;
                let template = self.store.provider(&proxy.spec.provider).and_then(|p| p.spec.bootstrap.clone());
                handle.create(&request(login).with_bootstrap(template.as_deref())).await.map(Answer::Created)
            }
            Call::Get | Call::Delete => {
                // Where it cannot be told, there is nothing to keep out of texts.
                let login = self.login(proxy, Some(&instance), keys, Some(handle), own).await.ok().flatten();
                if *call == Call::Get {
                    handle.get_knowing(&identity, login.as_ref()).await.map(Answer::Got)
                } else {
                    handle.delete_knowing(&identity, login.as_ref()).await.map(Answer::Deleted)
                }
            }
            Call::Search => {
                let uid = proxy.uid().unwrap_or_default();
                let all = handle.list().await?;
                Ok(Answer::Found(
                    all.into_iter().filter(|i| i.owner.as_ref().is_some_and(|o| o.proxy_uid == uid)).collect(),
                ))
            }
        }
    }
}

fn missing(message: String, reason: &str) -> CallError {
    CallError::new(ErrorKind::ConfigMissing, message).with_reason(reason)
}

/// host:port of the judge, which a proxy must be allowed to reach although it may be private.
fn must_reach(judge: &str) -> Vec<String> {
    let url = url::Url::parse(judge).ok();
    let authority = url.and_then(|u| Some(format!("{}:{}", u.host_str()?, u.port_or_known_default()?)));
    authority.into_iter().collect()
}
