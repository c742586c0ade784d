//! One repository of a registry: as much of the distribution protocol as a pull needs. A registry is somebody else's: what it
//! answers is bounded, and what it sends to is held against the egress guard.

use std::fmt::Display;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_spec::distribution::Reference;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;

use super::login::Login;
use super::pin::Pin;
use crate::model::provider::Permit;
use crate::plugin::contract::foreign;
use crate::plugin::io::address::{Guard, GuardError};
use crate::plugin::io::http::{builder, check_literal};
use crate::plugin::limits::BODY_BYTES;
use crate::plugin::load::PullError;

/// Kinds of manifests, and of lists of them.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json";
/// The answer that a token is in; those of the large clouds have some kilobytes.
const TOKEN_BYTES: usize = 64 << 10;
/// From one place to the next.
const REDIRECTS: usize = 5;

/// A repository, asked in the name of one Provider.
pub(super) struct Repository {
    /// HOST or HOST:PORT, as the reference has it.
    host: String,
    name: String,
    base: Url,
    login: Option<Login>,
    /// Registries that the administrator lets be spoken to in plain HTTP.
    plain: Vec<Url>,
    /// For hosts that somebody named who may: wherever they are.
    named: (Guard, Client),
    /// For those that a registry names.
    guarded: (Guard, Client),
    credential: Option<HeaderValue>,
}

/// What a reference points at.
#[derive(Deserialize)]
pub(super) struct Manifest {
    /// What an artifact is made of.
    #[serde(default)]
    pub layers: Vec<Descriptor>,
    /// Of an index: the artifacts.
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

/// Names a file of the repository.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    os: String,
}

impl Descriptor {
    /// What the file must be.
    pub fn pin(&self) -> Result<Pin, PullError> {
        let digest = foreign(&self.digest);
        Pin::parse(&self.digest).ok_or_else(|| {
            PullError(format!(
                "its manifest names the digest {digest}, which is neither sha256 nor sha512; push it again"
            ))
        })
    }
}

impl Repository {
    /// Of a reference. `plain`: registries (`HOST:PORT`) that are spoken to in plain HTTP.
    pub fn new(reference: &Reference, login: Option<Login>, plain: &[String]) -> Result<Self, PullError> {
        let (host, name) = (reference.resolve_registry().to_owned(), reference.repository().to_owned());
        let scheme = if plain.contains(&host) { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/v2/{name}/"));
        let base = base.map_err(|e| PullError(format!("registry {host} is no host: {e}")))?;
        let client = |permit: &[Permit]| {
            let guard = Guard::new(permit);
            let client = builder(&guard).build();
            client.map(|client| (guard, client)).map_err(|e| PullError(format!("no client can be built: {e}")))
        };
        let plain = plain.iter().filter_map(|named| Url::parse(&format!("http://{named}")).ok()).collect();
        let (named, guarded) = (client(&[Permit::Loopback, Permit::LinkLocal])?, client(&[])?);
        Ok(Self { host, name, base, login, plain, named, guarded, credential: None })
    }

    /// The manifest of an artifact, by tag or digest; of an index the one that it holds.
    pub async fn manifest(&mut self, which: &str) -> Result<Manifest, PullError> {
        let manifest = self.one_manifest(which).await?;
        // What a build tool says about an artifact stands beside it, for no platform.
        let is_artifact = |d: &&Descriptor| d.platform.as_ref().is_none_or(|platform| platform.os != "unknown");
        let artifacts: Vec<_> = manifest.manifests.iter().filter(is_artifact).collect();
        match artifacts[..] {
            [] => Ok(manifest),
            [only] => self.one_manifest(&only.pin()?.to_string()).await,
            _ => Err(PullError(format!(
                "it is an index of {} artifacts; name one of them by its digest in spec.plugin.oci",
                artifacts.len()
            ))),
        }
    }

    async fn one_manifest(&mut self, which: &str) -> Result<Manifest, PullError> {
        let answer = self.get(&format!("manifests/{which}")).await?;
        let bytes = self.read(answer, BODY_BYTES, "a manifest").await?;
        if Pin::parse(which).is_some_and(|pin| !pin.fits(&bytes)) {
            return Err(self.another());
        }
        serde_json::from_slice(&bytes).map_err(|e| {
            self.says(format_args!("answers with something that is no manifest ({e}); correct spec.plugin.oci"))
        })
    }

    /// A file, of which the manifest says how large it is.
    pub async fn blob(&mut self, pin: &Pin, size: usize) -> Result<Vec<u8>, PullError> {
        let answer = self.get(&format!("blobs/{pin}")).await?;
        let bytes = self.read(answer, size, "a layer larger than its manifest says,").await?;
        if pin.fits(&bytes) { Ok(bytes) } else { Err(self.another()) }
    }

    /// What is at this path of the repository, with credentials where they are asked for.
    async fn get(&mut self, path: &str) -> Result<Response, PullError> {
        let url = self.base.join(path).map_err(|e| self.says(format_args!("cannot be asked for {path}: {e}")))?;
        let mut answer = self.ask(url.clone()).await?;
        if answer.status() == StatusCode::UNAUTHORIZED && self.credential.is_none() {
            self.credential = Some(self.log_in(&answer).await?);
            answer = self.ask(url).await?;
        }
        match answer.status() {
            status if status.is_success() => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.refused()),
            StatusCode::NOT_FOUND => Err(self.says("has no such artifact; push it, or correct spec.plugin.oci")),
            // What it says beside it is not read: it may be long, and repeat what it was sent.
            status => Err(self.says(format_args!("answered with status {status}"))),
        }
    }

    /// Asks, wherever it is sent to.
    async fn ask(&self, mut url: Url) -> Result<Response, PullError> {
        for _ in 0..=REDIRECTS {
            let mut request = self.client(&url)?.get(url.clone()).header(ACCEPT, MANIFESTS);
            // It is for the registry alone, and not for where the registry sends to.
            if let Some(credential) = self.credential.as_ref().filter(|_| url.origin() == self.base.origin()) {
                request = request.header(AUTHORIZATION, credential);
            }
            let answer = request.send().await.map_err(|error| self.unreachable(&url, &error))?;
            let to = answer.headers().get(LOCATION).filter(|_| answer.status().is_redirection());
            match to.and_then(|to| url.join(to.to_str().ok()?).ok()) {
                Some(to) => url = to,
                None => return Ok(answer),
            }
        }
        Err(self.says(format_args!("sends on more than {REDIRECTS} times")))
    }

    /// The client for what the registry names, where that may be asked.
    fn client(&self, url: &Url) -> Result<&Client, PullError> {
        let same =
            |other: &Url| (other.host(), other.port_or_known_default()) == (url.host(), url.port_or_known_default());
        let plain = self.plain.iter().any(same);
        if url.scheme() != "https" && !(url.scheme() == "http" && plain) {
            return Err(self.says(format_args!(
                "sends to {}, which is not https; correct that, or name its HOST:PORT under --insecure-registry",
                at(url)
            )));
        }
        // An address, or this machine, is named in spec.plugin.oci when it is meant; another name may turn out to be one.
        let literal = || !matches!(url.host(), Some(url::Host::Domain(name)) if name != "localhost");
        let named = plain || (same(&self.base) && literal());
        let (guard, client) = if named { &self.named } else { &self.guarded };
        check_literal(guard, url).map_err(|error| self.guarded(url, &error))?;
        Ok(client)
    }

    /// A credential, as the registry wants one.
    async fn log_in(&self, answer: &Response) -> Result<HeaderValue, PullError> {
        let texts = answer.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|text| text.to_str().ok());
        let (mut basic, mut bearer) = (false, None);
        for challenge in texts.filter_map(|text| http_auth::parse_challenges(text).ok()).flatten() {
            let of = |name: &str| {
                let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped())
            };
            basic |= challenge.scheme.eq_ignore_ascii_case("basic");
            if challenge.scheme.eq_ignore_ascii_case("bearer") {
                bearer = of("realm").map(|realm| (realm, of("service")));
            }
        }
        let mut credential = match (bearer, &self.login) {
            (Some((realm, service)), _) => {
                HeaderValue::try_from(format!("Bearer {}", self.token(&realm, service.as_deref()).await?))
            }
            (None, Some(Login { user, password })) if basic => {
                let both = [user.as_bytes(), b":", password.expose()].concat();
                HeaderValue::try_from(format!("Basic {}", STANDARD.encode(both)))
            }
            _ => return Err(self.refused()),
        }
        .map_err(|_| self.says("gives a token that is none"))?;
        credential.set_sensitive(true);
        Ok(credential)
    }

    /// A token for pulling, from where the registry says that there are some.
    async fn token(&self, realm: &str, service: Option<&str>) -> Result<String, PullError> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let mut url = Url::parse(realm)
            .map_err(|e| self.says(format_args!("has its tokens at {}, which is no URL: {e}", foreign(realm))))?;
        url.query_pairs_mut()
            .extend_pairs(service.map(|service| ("service", service)))
            .append_pair("scope", &format!("repository:{}:pull", self.name));
        let mut request = self.client(&url)?.get(url.clone());
        if let Some(Login { user, password }) = &self.login {
            request = request.basic_auth(user, password.expose_line());
        }
        let answer = request.send().await.map_err(|error| self.unreachable(&url, &error))?;
        match answer.status() {
            status if status.is_success() => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(self.refused()),
            status => {
                return Err(
                    self.says(format_args!("has its tokens at {}, which answered with status {status}", at(&url)))
                );
            }
        }
        let bytes = self.read(answer, TOKEN_BYTES, "a token").await?;
        // serde's own words may quote what it met.
        let answer: Option<Answer> = serde_json::from_slice(&bytes).ok();
        let token = answer.and_then(|answer| answer.token.or(answer.access_token));
        token.ok_or_else(|| self.says(format_args!("has its tokens at {}, which gives none", at(&url))))
    }

    /// The body of an answer, up to so many bytes.
    async fn read(&self, mut answer: Response, most: usize, what: &str) -> Result<Vec<u8>, PullError> {
        let mut bytes = Vec::new();
        let url = answer.url().clone();
        while let Some(piece) = answer.chunk().await.map_err(|error| self.unreachable(&url, &error))? {
            if bytes.len() + piece.len() > most {
                return Err(self.says(format_args!("answers with {what} of over {most} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    fn says(&self, what: impl Display) -> PullError {
        PullError(format!("registry {} {what}", self.host))
    }

    fn another(&self) -> PullError {
        self.says("delivered something else than its digest names; push it again")
    }

    fn refused(&self) -> PullError {
        self.says(match &self.login {
            Some(_) => "refuses the credentials of spec.plugin.pullSecretRef; correct the Secret",
            None => "wants credentials; name their Secret in spec.plugin.pullSecretRef",
        })
    }

    fn guarded(&self, url: &Url, error: &GuardError) -> PullError {
        match error {
            GuardError::Dns(why) => self.says(format_args!("cannot be reached: {why}")),
            GuardError::Refused { address, kind, .. } if url.origin() == self.base.origin() => self.says(format_args!(
                "is at {address}, {kind}; name it by that address in spec.plugin.oci if that is meant"
            )),
            GuardError::Refused { address, kind, .. } => self.says(format_args!(
                "sends to {}, which is at {address}, {kind}, and that is not followed; correct what the registry says",
                at(url)
            )),
        }
    }

    fn unreachable(&self, url: &Url, error: &reqwest::Error) -> PullError {
        let mut cause: &dyn std::error::Error = error;
        while let Some(deeper) = cause.source() {
            if let Some(guard) = deeper.downcast_ref::<GuardError>() {
                return self.guarded(url, guard);
            }
            cause = deeper;
        }
        match url.origin() == self.base.origin() {
            true => self.says(format_args!("cannot be reached: {cause}")),
            false => self.says(format_args!("sends to {}, which cannot be reached: {cause}", at(url))),
        }
    }
}

/// The host of a URL, which may come from a registry; what follows it may hold credentials.
fn at(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    foreign(&format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default()))
}
