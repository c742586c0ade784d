//! What is meant: `KIND`, `KIND NAME…` or `KIND/NAME…`.

use super::client::Failure;
use crate::model::naming;

/// What there is a list of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Proxies,
    Providers,
    Events,
    /// They are deleted, and never shown.
    Secrets,
}

impl Kind {
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "proxies" | "proxy" | "px" => Self::Proxies,
            "providers" | "provider" | "pxp" => Self::Providers,
            "events" | "event" => Self::Events,
            "secrets" | "secret" => Self::Secrets,
            other => {
                let why = format!("there is no kind {other:?}: use proxies (px), providers (pxp) or events");
                return Err(Failure::Usage(why).into());
            }
        })
    }

    pub fn plural(self) -> &'static str {
        match self {
            Self::Proxies => "proxies",
            Self::Providers => "providers",
            Self::Events => "events",
            Self::Secrets => "secrets",
        }
    }

    pub fn singular(self) -> &'static str {
        self.of_manifests().map_or("event", naming::Kind::word)
    }

    /// The kind of the manifests; of events there are none.
    pub fn of_manifests(self) -> Option<naming::Kind> {
        match self {
            Self::Proxies => Some(naming::Kind::Proxy),
            Self::Providers => Some(naming::Kind::Provider),
            Self::Secrets => Some(naming::Kind::Secret),
            Self::Events => None,
        }
    }
}

impl From<naming::Kind> for Kind {
    fn from(kind: naming::Kind) -> Self {
        match kind {
            naming::Kind::Proxy => Self::Proxies,
            naming::Kind::Provider => Self::Providers,
            naming::Kind::Secret => Self::Secrets,
        }
    }
}

/// One object by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub kind: Kind,
    pub name: String,
}

/// Reads `KIND NAME…` or `KIND/NAME…`.
pub(super) fn named(words: &[String]) -> anyhow::Result<Vec<Named>> {
    let one = |kind, name: &str| Named { kind, name: name.to_owned() };
    let with_slash = words.iter().filter(|word| word.contains('/')).count();
    let named = if with_slash == 0 {
        let [kind, names @ ..] = words else { return Ok(vec![]) };
        let kind = Kind::parse(kind)?;
        names.iter().map(|name| one(kind, name)).collect()
    } else {
        let split = |word: &String| {
            let both = word.split_once('/').filter(|(_, name)| !name.is_empty() && !name.contains('/'));
            let (kind, name) = both.ok_or_else(|| {
                Failure::Usage(format!("{word:?} is not KIND/NAME: write either KIND NAME… or KIND/NAME…"))
            })?;
            Ok(one(Kind::parse(kind)?, name))
        };
        words.iter().map(split).collect::<anyhow::Result<Vec<_>>>()?
    };
    if named.iter().any(|one| one.kind == Kind::Events) {
        return Err(Failure::Usage("events have no names: see `proxy-operator events --for KIND/NAME`".into()).into());
    }
    Ok(named)
}

/// `what` is done with what should have been named.
pub(super) fn nothing_named(what: &str) -> anyhow::Error {
    Failure::Usage(format!("name what is {what}: KIND NAME… or KIND/NAME…")).into()
}

pub(super) fn no_secrets(names: &[Named]) -> anyhow::Result<()> {
    let secret = names.iter().any(|one| one.kind == Kind::Secrets);
    if secret { Err(Failure::Usage("Secrets are never shown".into()).into()) } else { Ok(()) }
}

pub(super) fn not_found(named: &Named, namespace: &str) -> anyhow::Error {
    let Named { kind, name } = named;
    let place = if *kind == Kind::Proxies { format!(" in namespace {namespace}") } else { String::new() };
    let lists = match kind {
        Kind::Secrets => String::new(),
        kind => format!("; `proxy-operator get {}` lists them", kind.plural()),
    };
    anyhow::anyhow!("there is no {} {name:?}{place}{lists}", kind.singular())
}
