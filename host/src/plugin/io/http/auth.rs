//! How the host authenticates. No guest ever sees a credential.

use base64::Engine as _;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use super::google::{KeyFile, TokenServer};
use super::token::TokenCache;
use crate::model::provider::{HttpAuth, Permit, Source};
use crate::model::secret::SecretBytes;
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::grants::{Grants, SecretError, TokenError};
use crate::plugin::io::fault;

/// How the host authenticates at one origin.
pub(super) enum Auth {
    None,
    Bearer(Source),
    Basic(String, Source),
    Header(HeaderName, Source),
    /// By TokenRequest.
    ServiceAccount(String, TokenCache),
    GoogleKey(Source, TokenServer, TokenCache),
    GoogleMetadata(TokenServer, TokenCache),
}

/// A header with a credential, and the credential itself, to be scrubbed from texts.
pub(super) struct Credential {
    pub name: HeaderName,
    pub value: HeaderValue,
    pub secret: SecretBytes,
}

/// Why there is no credential.
enum AuthError {
    Secret(SecretError),
    Token(TokenError),
}

impl From<SecretError> for AuthError {
    fn from(error: SecretError) -> Self {
        Self::Secret(error)
    }
}

impl From<TokenError> for AuthError {
    fn from(error: TokenError) -> Self {
        Self::Token(error)
    }
}

impl Auth {
    /// Takes an `auth` block. The error says what to change.
    pub fn new(spec: Option<&HttpAuth>, permit: &[Permit]) -> Result<Self, String> {
        let Some(spec) = spec else { return Ok(Self::None) };
        let HttpAuth { bearer, basic, header, service_account, google_service_account, google_metadata } = spec;
        let mut all = vec![];
        all.extend(bearer.as_ref().map(|source| Ok(Self::Bearer(source.clone()))));
        all.extend(basic.as_ref().map(|basic| Ok(Self::Basic(basic.username.clone(), basic.password.clone()))));
        all.extend(header.as_ref().map(|header| {
            let name = HeaderName::try_from(header.name.as_str());
            let name = name.map_err(|_| format!("http.auth.header.name {:?} is no header's name", header.name))?;
            Ok(Self::Header(name, header.value.clone()))
        }));
        all.extend(service_account.as_ref().map(|a| Ok(Self::ServiceAccount(a.name.clone(), TokenCache::default()))));
        all.extend(google_service_account.as_ref().map(|google| {
            let server = TokenServer::for_keys(google.token_url.as_deref(), permit)?;
            Ok(Self::GoogleKey(google.key.clone(), server, TokenCache::default()))
        }));
        all.extend(google_metadata.as_ref().map(|google| {
            let server = TokenServer::metadata(google.url.as_deref(), permit)?;
            Ok(Self::GoogleMetadata(server, TokenCache::default()))
        }));
        match (all.pop(), all.is_empty()) {
            (Some(only), true) => only,
            _ => Err("http.auth holds exactly one of bearer, basic, header, serviceAccount, googleServiceAccount and googleMetadata".into()),
        }
    }

    /// What it is made from, where that is a credential of ours.
    pub fn source(&self) -> Option<&Source> {
        match self {
            Self::Bearer(source) | Self::Basic(_, source) | Self::Header(_, source) | Self::GoogleKey(source, ..) => {
                Some(source)
            }
            _ => None,
        }
    }

    /// Tries what is needed, without asking anybody but the API server.
    pub async fn probe(&self, grants: &Grants) -> Result<(), SecretError> {
        match self {
            Self::None | Self::GoogleMetadata(..) => Ok(()),
            Self::Bearer(source) | Self::Basic(_, source) | Self::Header(_, source) => {
                grants.resolve(source).await.map(drop)
            }
            Self::GoogleKey(source, ..) => key_file(grants, source).await.map(drop),
            Self::ServiceAccount(..) => match self.secret(grants).await {
                Ok(_) => Ok(()),
                Err(AuthError::Secret(error)) => Err(error),
                Err(AuthError::Token(error)) => Err(SecretError::Unreadable(error.to_string())),
            },
        }
    }

    /// The header that authenticates a request.
    pub async fn credential(&self, grants: &Grants) -> Result<Option<Credential>, Fault> {
        let secret = match self.secret(grants).await {
            Ok(None) => return Ok(None),
            Ok(Some(secret)) => secret,
            Err(AuthError::Token(TokenError::Unavailable(why))) => {
                return Err(fault(FaultKind::Unreachable, false, why));
            }
            Err(AuthError::Token(TokenError::Refused(why))) => return Err(fault(FaultKind::Credential, false, why)),
            Err(AuthError::Secret(error)) => return Err(fault(FaultKind::Credential, false, error.to_string())),
        };
        let header = self.header(&secret);
        let (name, value) = header
            .ok_or_else(|| fault(FaultKind::Credential, false, "the credential holds a line break or is not text"))?;
        Ok(Some(Credential { name, value, secret }))
    }

    /// A backend refused this credential: whether another can be had by asking for it anew.
    pub async fn forget(&self, secret: &SecretBytes) -> bool {
        match self {
            Self::ServiceAccount(_, cache) | Self::GoogleKey(_, _, cache) | Self::GoogleMetadata(_, cache) => {
                cache.forget(secret).await;
                true
            }
            Self::None | Self::Bearer(_) | Self::Basic(..) | Self::Header(..) => false,
        }
    }

    async fn secret(&self, grants: &Grants) -> Result<Option<SecretBytes>, AuthError> {
        Ok(Some(match self {
            Self::None => return Ok(None),
            Self::Bearer(source) | Self::Basic(_, source) | Self::Header(_, source) => grants.resolve(source).await?,
            Self::ServiceAccount(name, cache) => {
                let standalone =
                    || TokenError::Refused("tokens of service accounts are served on Kubernetes alone".into());
                let cluster = grants.cluster().ok_or_else(standalone)?;
                cache.get([0; 32], cluster.token(name)).await?
            }
            Self::GoogleKey(source, server, cache) => {
                let (key, digest) = key_file(grants, source).await?;
                cache.get(digest, server.exchange(&key)).await?
            }
            Self::GoogleMetadata(server, cache) => cache.get([0; 32], server.of_machine()).await?,
        }))
    }

    fn header(&self, secret: &SecretBytes) -> Option<(HeaderName, HeaderValue)> {
        let text = secret.expose_line()?;
        let (name, value) = match self {
            Self::Header(name, _) => (name.clone(), text.to_owned()),
            Self::Basic(user, _) => {
                let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{text}"));
                (AUTHORIZATION, format!("Basic {pair}"))
            }
            _ => (AUTHORIZATION, format!("Bearer {text}")),
        };
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    }
}

/// The key file of a source, and the digest that tells whether it was rotated.
async fn key_file(grants: &Grants, source: &Source) -> Result<(KeyFile, [u8; 32]), SecretError> {
    let bytes = grants.resolve(source).await?;
    let key = KeyFile::parse(&bytes)
        .map_err(|why| SecretError::Unreadable(format!("http.auth.googleServiceAccount ({source}) {why}")))?;
    Ok((key, Sha256::digest(bytes.expose()).into()))
}
