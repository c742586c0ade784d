//! A look at each host call of a Provider's plugin, and a way to break it. The conformance kit sets one; the operator never
//! does, and then a call costs one comparison.

use super::bindings::crawl::provider::faults::{Fault, FaultKind};
use super::bindings::crawl::provider::http::{HttpRequest, HttpResponse};
use super::bindings::crawl::provider::ssh::{Command, Ended, Output};
use super::call::CallState;

/// A host call with which a guest reaches its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A request.
    Http {
        /// The connection.
        connection: String,
        /// Upper case.
        method: String,
        /// Below the connection's base URL.
        path: String,
        /// Raw pairs.
        query: Vec<(String, String)>,
        /// Those that the guest set.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// A command.
    Ssh {
        /// The connection.
        connection: String,
        /// Program and arguments.
        argv: Vec<String>,
        /// Standard input.
        stdin: Vec<u8>,
    },
}

/// What a backend answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// To a request.
    Http {
        /// Status code.
        status: u16,
        /// Headers.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// To a command.
    Ssh {
        /// Exit status.
        status: u32,
        /// Standard output.
        stdout: Vec<u8>,
        /// Standard error.
        stderr: Vec<u8>,
    },
}

/// What becomes of a host call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out.
    Pass,
    /// It is carried out, and the guest is told that the connection broke.
    LoseAnswer,
    /// The interceptor itself carried it out, and the guest is told that the connection broke.
    Lost,
    /// Nothing is sent: nobody listens there.
    Unreachable,
    /// Nothing is sent: this is the answer.
    Answer(Told),
}

/// Further host calls, which reach no backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// `secrets.get` of this name.
    Secret(String),
    /// One of `clock`.
    Clock,
    /// `random.bytes`, with what it gave.
    Random(Vec<u8>),
    /// A draw over WASI, with what it gave. The runtime of a language may make it for itself, whatever is called.
    WasiRandom(Vec<u8>),
    /// `log.write`, before anything is scrubbed from it.
    Log(String),
}

/// Sees host calls. `function` is the export that makes them.
pub trait Interceptor: Send + Sync + 'static {
    /// Before a call to a backend.
    fn before(&self, function: &'static str, asked: &Asked) -> Fate;
    /// After the backend answered: what the guest is told instead.
    fn after(&self, function: &'static str, asked: &Asked, told: Told) -> Told;
    /// A call that reaches no backend.
    fn note(&self, function: &'static str, noted: Noted);
}

impl CallState {
    /// Tells of a call that reaches no backend.
    pub(super) fn note(&self, noted: impl FnOnce() -> Noted) {
        if let Some(interceptor) = &self.grants.interceptor {
            interceptor.note(self.function, noted());
        }
    }

    /// What is to become of a call; none: nobody looks.
    fn fate(&self, asked: impl FnOnce() -> Asked) -> Option<(Asked, Fate)> {
        let interceptor = self.grants.interceptor.as_ref()?;
        let asked = asked();
        let fate = interceptor.before(self.function, &asked);
        Some((asked, fate))
    }

    fn told(&self, asked: &Asked, told: Told) -> Told {
        match &self.grants.interceptor {
            Some(interceptor) => interceptor.after(self.function, asked, told),
            None => told,
        }
    }

    /// `http.send` under the eyes of an interceptor.
    pub(super) async fn watched_send(
        &mut self,
        connection: String,
        request: HttpRequest,
    ) -> wasmtime::Result<Result<HttpResponse, Fault>> {
        let fate = self.fate(|| Asked::Http {
            connection: connection.clone(),
            method: request.method.clone(),
            path: request.path.clone(),
            query: request.query.clone(),
            headers: texts(&request.headers),
            body: request.body.clone().unwrap_or_default(),
        });
        let Some((asked, fate)) = fate else { return self.send_now(connection, request).await };
        let answer = match fate {
            Fate::Unreachable => return Ok(Err(unreachable())),
            Fate::Lost => return Ok(Err(lost())),
            Fate::Answer(told) => Ok(response(told)),
            Fate::Pass => self.send_now(connection, request).await?,
            Fate::LoseAnswer => self.send_now(connection, request).await?.and_then(|_| Err(lost())),
        };
        Ok(answer.map(|HttpResponse { status, headers, body }| {
            response(self.told(&asked, Told::Http { status, headers: texts(&headers), body }))
        }))
    }

    /// `ssh.exec` under the eyes of an interceptor.
    pub(super) async fn watched_exec(
        &mut self,
        connection: String,
        command: Command,
    ) -> wasmtime::Result<Result<Output, Fault>> {
        let fate = self.fate(|| Asked::Ssh {
            connection: connection.clone(),
            argv: command.argv.clone(),
            stdin: command.stdin.clone(),
        });
        let Some((asked, fate)) = fate else { return self.exec_now(connection, command).await };
        let answer = match fate {
            Fate::Unreachable => return Ok(Err(unreachable())),
            Fate::Lost => return Ok(Err(lost())),
            Fate::Answer(told) => Ok(output(told)),
            Fate::Pass => self.exec_now(connection, command).await?,
            Fate::LoseAnswer => self.exec_now(connection, command).await?.and_then(|_| Err(lost())),
        };
        Ok(answer.map(|told| match told.ended {
            Ended::Status(status) => {
                output(self.told(&asked, Told::Ssh { status, stdout: told.stdout, stderr: told.stderr }))
            }
            // How a command was killed is no answer of the backend.
            Ended::Signal(_) => told,
        }))
    }
}

fn lost() -> Fault {
    Fault { kind: FaultKind::Lost, sent: true, message: "the answer was lost: the connection broke".into() }
}

fn unreachable() -> Fault {
    Fault { kind: FaultKind::Unreachable, sent: false, message: "no connection: nobody listens there".into() }
}

fn texts(headers: &[(String, Vec<u8>)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (name.clone(), String::from_utf8_lossy(value).into_owned())).collect()
}

/// An answer of the wrong kind cannot come: an interceptor answers what it was asked. It would be an empty one.
fn response(told: Told) -> HttpResponse {
    match told {
        Told::Http { status, headers, body } => {
            let headers = headers.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
            HttpResponse { status, headers, body }
        }
        Told::Ssh { .. } => HttpResponse { status: 500, headers: vec![], body: vec![] },
    }
}

fn output(told: Told) -> Output {
    let (status, stdout, stderr) = match told {
        Told::Ssh { status, stdout, stderr } => (status, stdout, stderr),
        Told::Http { .. } => (255, vec![], vec![]),
    };
    Output { ended: Ended::Status(status), stdout, stderr, truncated: false }
}
