//! The kit's eyes and hands at the host calls: what a guest asked for, and which answer went wrong.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::script::ssh::Commands;
use crate::plugin::intercept::{Asked, Fate, Interceptor, Noted, Told};

/// What no backend says.
pub(super) const UNHEARD_OF: &str = "kit-unheard-of";
/// Names under which HTTP APIs tell how a machine is.
const STATE_FIELDS: [&str; 5] = ["state", "status", "phase", "powerstate", "lifecyclestate"];

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub(super) enum Plan {
    /// Nothing.
    #[default]
    Nothing,
    /// The answer to the change of this number is lost; with `cut`, nothing is reached from then on.
    Lose { change: usize, cut: bool },
    /// Nobody listens.
    Unreachable,
    /// The call of this number is answered with an error of the server.
    Fail(usize),
    /// Every request is answered so.
    Status(u16, Vec<(String, String)>),
    /// Texts in answers read otherwise.
    Replace(Vec<(String, String)>),
    /// States in answers have a name that nobody knows.
    UnknownState,
}

#[derive(Default)]
struct Seen {
    plan: Plan,
    calls: Vec<(&'static str, Asked)>,
    notes: Vec<(&'static str, Noted)>,
    changes: usize,
    struck: usize,
    cut: bool,
}

/// Sees and breaks host calls.
#[derive(Default)]
pub(super) struct Observer {
    seen: Mutex<Seen>,
    commands: Option<Commands>,
}

impl Observer {
    /// With commands that are answered from a script.
    pub fn new(commands: Option<Commands>) -> Self {
        Self { commands, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was seen, and lets this happen from now on.
    pub fn plan(&self, plan: Plan) {
        *self.lock() = Seen { plan, ..Seen::default() };
    }

    /// The script's variables as at the start.
    pub fn reset(&self) {
        self.plan(Plan::Nothing);
        if let Some(commands) = &self.commands {
            commands.reset();
        }
    }

    /// How often the plan struck.
    pub fn struck(&self) -> usize {
        self.lock().struck
    }

    /// Calls to a backend since the last plan.
    pub fn calls(&self) -> Vec<(&'static str, Asked)> {
        self.lock().calls.clone()
    }

    /// Those of them that change something.
    pub fn changes(&self) -> Vec<Asked> {
        self.calls().into_iter().map(|(_, asked)| asked).filter(is_change).collect()
    }

    /// Other host calls since the last plan.
    pub fn notes(&self) -> Vec<(&'static str, Noted)> {
        self.lock().notes.clone()
    }
}

/// Whether a call may change a backend. Of a command nobody can tell.
pub(super) fn is_change(asked: &Asked) -> bool {
    match asked {
        Asked::Http { method, .. } => !matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS"),
        Asked::Ssh { .. } => true,
    }
}

/// Whether a call is certainly no query. A `POST` may be one, and so may a command.
pub(super) fn is_write(asked: &Asked) -> bool {
    is_change(asked) && matches!(asked, Asked::Http { method, .. } if method != "POST")
}

/// A call on one line.
pub(super) fn line(asked: &Asked) -> String {
    match asked {
        Asked::Http { connection, method, path, .. } => format!("{method} {path} on connection {connection}"),
        Asked::Ssh { connection, argv, .. } => format!("{} on connection {connection}", argv.join(" ")),
    }
}

impl Interceptor for Observer {
    fn before(&self, function: &'static str, asked: &Asked) -> Fate {
        let mut seen = self.lock();
        let (number, change) = (seen.calls.len(), seen.changes);
        seen.calls.push((function, asked.clone()));
        seen.changes += usize::from(is_change(asked));
        let fate = match &seen.plan {
            _ if seen.cut => Fate::Unreachable,
            Plan::Unreachable => Fate::Unreachable,
            Plan::Lose { change: lost, cut } if is_change(asked) && change == *lost => {
                seen.cut = *cut;
                Fate::LoseAnswer
            }
            Plan::Fail(failing) if number == *failing => Fate::Answer(server_error(asked)),
            Plan::Status(status, headers) => match asked {
                Asked::Http { .. } => {
                    Fate::Answer(Told::Http { status: *status, headers: headers.clone(), body: b"{}".to_vec() })
                }
                Asked::Ssh { .. } => Fate::Pass,
            },
            _ => Fate::Pass,
        };
        seen.struck += usize::from(fate != Fate::Pass);
        let scripted = match (&fate, asked, &self.commands) {
            (Fate::Pass | Fate::LoseAnswer, Asked::Ssh { connection, argv, .. }, Some(commands)) => {
                commands.answer(connection, argv)
            }
            _ => None,
        };
        match (scripted, fate) {
            (Some(told), Fate::Pass) => Fate::Answer(told),
            (Some(_), Fate::LoseAnswer) => Fate::Lost,
            (_, fate) => fate,
        }
    }

    fn after(&self, _function: &'static str, _asked: &Asked, told: Told) -> Told {
        let mut seen = self.lock();
        let Seen { plan, struck, .. } = &mut *seen;
        match plan {
            Plan::Replace(pairs) => replace(told, pairs, struck),
            Plan::UnknownState => unknown_state(told, struck),
            _ => told,
        }
    }

    fn note(&self, function: &'static str, noted: Noted) {
        self.lock().notes.push((function, noted));
    }
}

fn server_error(asked: &Asked) -> Told {
    match asked {
        Asked::Http { .. } => Told::Http { status: 503, headers: vec![], body: b"{}".to_vec() },
        Asked::Ssh { .. } => Told::Ssh { status: 255, stdout: vec![], stderr: b"failed to connect".to_vec() },
    }
}

fn replace(told: Told, pairs: &[(String, String)], struck: &mut usize) -> Told {
    let mut other = |bytes: Vec<u8>| {
        let Ok(mut text) = String::from_utf8(bytes.clone()) else { return bytes };
        for (from, to) in pairs {
            *struck += text.matches(from.as_str()).count();
            text = text.replace(from.as_str(), to);
        }
        text.into_bytes()
    };
    match told {
        Told::Http { status, headers, body } => Told::Http { status, headers, body: other(body) },
        Told::Ssh { status, stdout, stderr } => Told::Ssh { status, stdout: other(stdout), stderr },
    }
}

fn unknown_state(told: Told, struck: &mut usize) -> Told {
    let Told::Http { status, headers, body } = told else { return told };
    let body = match serde_json::from_slice::<Value>(&body) {
        Ok(mut json) => {
            rename_states(&mut json, struck);
            json.to_string().into_bytes()
        }
        Err(_) => body,
    };
    Told::Http { status, headers, body }
}

fn rename_states(json: &mut Value, struck: &mut usize) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.to_ascii_lowercase().replace(['_', '-'], "");
                if value.is_string() && STATE_FIELDS.contains(&name.as_str()) {
                    *value = UNHEARD_OF.into();
                    *struck += 1;
                } else {
                    rename_states(value, struck);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename_states(item, struck)),
        _ => {}
    }
}
