//! `auth.publishSecret`: the login, where other workloads of the Proxy's namespace find it.

use super::driver::Driver;
use crate::model::login::Login;
use crate::model::naming::ProxyKey;
use crate::model::proxy::Proxy;
use crate::store::Severity;

/// What was last done about it, so that it is done and told once.
#[derive(Clone, PartialEq)]
pub(super) struct Published {
    secret: String,
    login: Login,
    problem: Option<String>,
}

impl Driver {
    /// Writes the login of a running proxy into its Secret, if it asks for one and this login is not there yet.
    pub(super) async fn publish(&self, proxy: &Proxy, login: &Login) {
        let Some(secret) = &proxy.spec.auth.publish_secret else { return };
        let key = ProxyKey::of(proxy);
        let before = self.published(&key);
        let done = |p: &Published| p.problem.is_none() && p.secret == *secret && p.login == *login;
        if before.as_ref().is_some_and(done) {
            return;
        }
        let problem = self.store.publish_login(proxy, secret, login).await.err().map(|error| error.to_string());
        let now = Published { secret: secret.clone(), login: login.clone(), problem };
        if before.as_ref() != Some(&now) {
            match &now.problem {
                Some(problem) => self.tell(&key, Severity::Warning, "PublishFailed", problem.clone()),
                None => self.tell(&key, Severity::Normal, "LoginPublished", format!("the login is in Secret {secret}")),
            }
        }
        self.remember_published(&key, now);
    }
}
