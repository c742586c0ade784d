//! Between the generated types and those of `model/`. Everything that a guest returns is bounded and scrubbed here.

use std::time::Duration;

use super::bindings::crawl::provider::types as wit;
use super::call::CallState;
use super::limits::CONTINUATION_BYTES;
use crate::model::error::{CallError, ErrorKind, FieldError};
use crate::model::instance::{
    Address, ConnectionNeed, Deletion, Description, Finding, Identity, Instance, Owner, Presence, Request, State,
};
use crate::model::schema;

/// Longest id, placement and reason. What stands in a status is no longer than the CRD lets it be: the API server would refuse
/// the status, each time.
const ID_BYTES: usize = 1024;
/// Longest host of an address, and name of a secret.
const NAME_BYTES: usize = 253;
/// Longest version of a plugin.
const VERSION_BYTES: usize = 128;
/// Longest text for people.
const TEXT_BYTES: usize = 1024;
/// Connections, connection pointers, and capabilities in a description.
const DESCRIBED: usize = 64;

pub(super) fn identity(identity: &Identity) -> wit::Identity {
    wit::Identity {
        owner: owner(&identity.owner),
        incarnation: identity.incarnation,
        attempt: identity.attempt,
        placement: identity.placement.clone(),
        provider_id: identity.provider_id.clone(),
        backend_id: identity.backend_id.clone(),
        continuation: identity.continuation.clone(),
        extra: vec![],
    }
}

fn owner(owner: &Owner) -> wit::Owner {
    wit::Owner {
        installation: owner.installation.clone(),
        proxy_uid: owner.proxy_uid.clone(),
        namespace: owner.namespace.clone(),
        name: owner.name.clone(),
    }
}

pub(super) fn request(request: &Request) -> wit::Request {
    wit::Request {
        identity: identity(&request.identity),
        image: request.image.clone(),
        size: request.size.clone(),
        location: request.location.clone(),
        parameters: request.parameters.to_string(),
        port: request.port,
        protocol: request.protocol.to_owned(),
        login: request.login.as_ref().map(|login| wit::Login {
            username: login.username.clone(),
            password: login.password.expose_line().unwrap_or_default().to_owned(),
        }),
        bootstrap: request.bootstrap.clone(),
        must_reach: request.must_reach.clone(),
        spec_hash: request.spec_hash.clone(),
        extra: vec![],
    }
}

/// What a guest returned, on its way into the operator.
pub(super) struct Returned<'a>(pub &'a CallState);

impl Returned<'_> {
    fn bad(&self, message: String) -> CallError {
        CallError::new(
            ErrorKind::Internal,
            format!("plugin {}, {}: bad answer: {}", self.0.plugin, self.0.function, self.text(&message)),
        )
    }

    fn text(&self, text: &str) -> String {
        self.0.clean(text, TEXT_BYTES)
    }

    fn id(&self, what: &str, id: String) -> Result<String, CallError> {
        self.short_id(what, id, ID_BYTES)
    }

    fn short_id(&self, what: &str, id: String, most: usize) -> Result<String, CallError> {
        if id.len() > most || id.chars().any(char::is_control) || self.0.clean(&id, most) != id {
            return Err(self.bad(format!("{what} is over {most} bytes, or holds control characters or a secret")));
        }
        Ok(id)
    }

    fn continuation(&self, note: Option<String>) -> Result<Option<String>, CallError> {
        match note {
            Some(note) if note.len() > CONTINUATION_BYTES => {
                Err(self.bad(format!("the continuation is over {CONTINUATION_BYTES} bytes")))
            }
            // A note that was scrubbed is another note; losing it costs a look-up.
            Some(note) if self.0.secrets.scrub(&note) != note => {
                Err(self.bad("the continuation holds a secret".into()))
            }
            note => Ok(note),
        }
    }

    pub fn placement(&self, placement: String) -> Result<String, CallError> {
        if placement.is_empty() {
            return Err(self.bad("an empty placement".into()));
        }
        self.id("the placement", placement)
    }

    pub fn error(&self, error: wit::Error) -> CallError {
        let kind = match error.kind {
            wit::ErrorKind::Transient => ErrorKind::Transient,
            wit::ErrorKind::RateLimited(secs) => ErrorKind::RateLimited(secs.map(|s| Duration::from_secs(s.into()))),
            wit::ErrorKind::Exhausted => ErrorKind::Exhausted,
            wit::ErrorKind::Unauthorized => ErrorKind::Unauthorized,
            wit::ErrorKind::ConfigMissing => ErrorKind::ConfigMissing,
            wit::ErrorKind::InvalidSpec(fields) => ErrorKind::InvalidSpec(self.fields(fields)),
            wit::ErrorKind::Foreign => ErrorKind::Foreign,
            wit::ErrorKind::UnknownOutcome => ErrorKind::UnknownOutcome,
            wit::ErrorKind::Internal => ErrorKind::Internal,
        };
        let mut out = CallError::new(kind, self.text(&error.message));
        if let Some(reason) = error.reason.filter(|r| is_reason(r)) {
            out.reason = reason;
        }
        out.target = error.target.map(|t| self.text(&t).into());
        out.continuation = self.continuation(error.continuation).ok().flatten().map(Into::into);
        out
    }

    pub fn fields(&self, fields: Vec<wit::FieldError>) -> Vec<FieldError> {
        fields
            .into_iter()
            .take(64)
            .map(|f| FieldError { pointer: self.text(&f.pointer), message: self.text(&f.message) })
            .collect()
    }

    pub fn instance(&self, instance: wit::Instance) -> Result<Instance, CallError> {
        Ok(Instance {
            provider_id: self.id("provider-id", instance.provider_id)?,
            backend_id: instance.backend_id.map(|id| self.id("backend-id", id)).transpose()?,
            placement: self.placement(instance.placement)?,
            state: match instance.state {
                wit::State::Creating => State::Creating,
                wit::State::Running => State::Running,
                wit::State::Stopped => State::Stopped,
                wit::State::Failed(why) => State::Failed(self.text(&why)),
                wit::State::Deleting => State::Deleting,
                wit::State::Unknown(what) => State::Unknown(self.text(&what)),
            },
            addresses: instance
                .addresses
                .into_iter()
                .take(16)
                .map(|a| {
                    Ok(Address {
                        host: self.short_id("an address", a.host, NAME_BYTES)?,
                        external: a.reach == wit::Reach::External,
                    })
                })
                .collect::<Result<_, CallError>>()?,
            port: instance.port,
            // Tags that somebody else set may hold anything; what is cut is none of ours.
            owner: instance.owner.map(|o| Owner {
                installation: self.text(&o.installation),
                proxy_uid: self.text(&o.proxy_uid),
                namespace: self.text(&o.namespace),
                name: self.text(&o.name),
            }),
            incarnation: instance.incarnation,
            message: instance.message.map(|m| self.text(&m)),
            login_secret: instance.login_secret.map(|s| self.short_id("login-secret", s, NAME_BYTES)).transpose()?,
            poll_after: instance.poll_after_ms.map(|ms| Duration::from_millis(ms.into())),
            continuation: self.continuation(instance.continuation)?,
        })
    }

    pub fn presence(&self, presence: wit::Presence) -> Result<Presence, CallError> {
        Ok(match presence {
            wit::Presence::Present(instance) => Presence::Present(Box::new(self.instance(instance)?)),
            wit::Presence::Absent => Presence::Absent,
        })
    }

    pub fn deletion(&self, deletion: wit::Deletion) -> Result<Deletion, CallError> {
        Ok(match deletion {
            wit::Deletion::Gone => Deletion::Gone,
            wit::Deletion::InProgress(progress) => Deletion::InProgress {
                message: progress.message.map(|m| self.text(&m)),
                poll_after: progress.poll_after_ms.map(|ms| Duration::from_millis(ms.into())),
                continuation: self.continuation(progress.continuation)?,
            },
        })
    }

    pub fn findings(&self, findings: Vec<wit::Finding>) -> Vec<Finding> {
        findings
            .into_iter()
            .take(256)
            .map(|f| Finding {
                target: self.text(&f.target),
                healthy: f.healthy,
                reason: if is_reason(&f.reason) { f.reason } else { "Unknown".into() },
                message: self.text(&f.message),
            })
            .collect()
    }

    pub fn description(&self, description: wit::Description) -> Result<Description, CallError> {
        let schema = |what: &str, text: &str| schema::parse(text).map_err(|why| self.bad(format!("{what} {why}")));
        let all =
            [description.connections.len(), description.connection_pointers.len(), description.capabilities.len()];
        if all.into_iter().any(|count| count > DESCRIBED) {
            return Err(self.bad(format!("over {DESCRIBED} connections, connection pointers or capabilities")));
        }
        let ids = |what: &str, all: Vec<String>| all.into_iter().map(|id| self.id(what, id)).collect::<Result<_, _>>();
        Ok(Description {
            config_schema: schema("config-schema", &description.config_schema)?,
            parameters_schema: schema("parameters-schema", &description.parameters_schema)?,
            name: self.id("name", description.name)?,
            version: self.short_id("version", description.version, VERSION_BYTES)?,
            summary: self.text(&description.summary),
            connections: description
                .connections
                .into_iter()
                .map(|c| {
                    let (name, kind) =
                        (self.id("a connection's name", c.name)?, self.id("a connection's kind", c.kind)?);
                    Ok(ConnectionNeed { name, kind, required: c.required, doc: self.text(&c.doc) })
                })
                .collect::<Result<_, CallError>>()?,
            connection_pointers: ids("a connection pointer", description.connection_pointers)?,
            capabilities: ids("a capability", description.capabilities)?,
        })
    }
}

/// Bytes of all texts of an instance.
pub(super) fn texts(instance: &Instance) -> usize {
    let Instance {
        provider_id,
        backend_id,
        placement,
        state,
        addresses,
        owner,
        message,
        login_secret,
        continuation,
        ..
    } = instance;
    let state = match state {
        State::Failed(why) | State::Unknown(why) => why.len(),
        _ => 0,
    };
    let owner = owner.iter().flat_map(|o| [&o.installation, &o.proxy_uid, &o.namespace, &o.name]);
    let all = [backend_id, message, login_secret, continuation].into_iter().flatten();
    let all = all.chain([provider_id, placement]).chain(owner).chain(addresses.iter().map(|address| &address.host));
    state + all.map(String::len).sum::<usize>()
}

/// Whether text can be a condition's reason.
fn is_reason(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().all(|c| c.is_ascii_alphanumeric())
}
