//! Tokens of service accounts by TokenRequest, and how the API server is reached.

use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};

use super::KubeStore;
use crate::plugin::grants::{ApiServer, Cluster, Token, TokenError};

/// Asked for; the API server may grant another time.
const LIFETIME_SECS: i64 = 3600;

/// How this configuration reaches the API server.
pub(super) fn api_server(config: &kube::Config) -> ApiServer {
    let ca = config.root_cert.as_ref().map(|all| all.iter().flat_map(|der| pem(der)).collect());
    ApiServer { url: config.cluster_url.to_string(), ca, insecure: config.accept_invalid_certs }
}

/// A certificate in PEM.
fn pem(der: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n")).into_bytes()
}

#[async_trait]
impl Cluster for KubeStore {
    fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    async fn token(&self, name: &str) -> Result<Token, TokenError> {
        let namespace = &self.namespace;
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let wanted = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(LIFETIME_SECS), ..TokenRequestSpec::default() }),
            ..TokenRequest::default()
        };
        let what = format!("a token of ServiceAccount {name} in namespace {namespace}");
        let granted = match api.create_token_request(name, &PostParams::default(), &wanted).await {
            Ok(granted) => granted,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Err(TokenError::Refused(format!(
                    "there is no {what}: kubectl create serviceaccount {name} -n {namespace}"
                )));
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Err(TokenError::Refused(format!(
                    "the operator may not have {what}; to grant it: kubectl create role proxy-operator-token-{name} \
                     --verb=create --resource=serviceaccounts/token --resource-name={name} -n {namespace}, and bind it to \
                     the operator's account"
                )));
            }
            Err(error) => return Err(TokenError::Unavailable(format!("{what} could not be had: {error}"))),
        };
        let secs = granted.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(LIFETIME_SECS);
        let lifetime = Duration::from_secs(secs.try_into().unwrap_or_default());
        let token = granted.status.and_then(|status| status.token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| TokenError::Unavailable(format!("the API server answered without {what}")))?;
        Ok(Token { value: token.into(), lifetime })
    }
}
