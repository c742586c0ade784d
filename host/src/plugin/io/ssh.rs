//! `ssh`: commands by connection name. The host adds address, account, key and pinned host keys, and quotes each word.
//!
//! All commands of a connection share one SSH connection (`pool`); each has a channel of its own (`exec`).

mod connection;
mod exec;
mod key;
mod known_hosts;
mod pool;
mod quote;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tracing::Instrument;

use self::exec::{Run, Sent};
use self::key::ClientKey;
use self::pool::Pool;
use self::quote::quote;
use super::address::Guard;
use super::fault;
use crate::model::provider::{Source, SshConnection};
use crate::model::secret::SecretBytes;
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::bindings::crawl::provider::ssh::{Command, Host, Output};
use crate::plugin::call::CallState;
use crate::plugin::grants::{Grants, SecretError};
use crate::plugin::limits::{COMMAND_TIMEOUT, OUTPUT_BYTES, STDIN_BYTES};

/// One account on one host, with the connection to it.
pub(in crate::plugin) struct Account {
    name: String,
    spec: SshConnection,
    guard: Guard,
    pool: Arc<Pool>,
}

/// What a connection is made with, as it is now.
#[derive(Clone)]
struct Material {
    key: ClientKey,
    known_hosts: String,
    /// Of the sources' bytes: tells whether they were rotated.
    digest: [u8; 32],
}

impl Account {
    /// Takes a connection of a Provider. The error says what to change.
    pub fn new(name: &str, spec: &SshConnection) -> Result<Self, String> {
        let clean = |text: &str| !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control());
        if !clean(&spec.host) || spec.host.contains(['/', '@']) {
            return Err(format!(
                "ssh.host {:?} is no host name or address; user and port have fields of their own",
                spec.host
            ));
        }
        if !clean(&spec.user) {
            return Err(format!("ssh.user {:?} is no account's name", spec.user));
        }
        if spec.allow.iter().any(Vec::is_empty) {
            return Err("ssh.allow holds an empty rule, which would allow every command; name its first words".into());
        }
        Ok(Self { name: name.into(), spec: spec.clone(), guard: Guard::new(&spec.permit), pool: Arc::default() })
    }

    /// Where its private key comes from.
    pub fn key(&self) -> &Source {
        &self.spec.key
    }

    /// Host name or address, without brackets.
    fn host(&self) -> &str {
        self.spec.host.trim_matches(['[', ']'])
    }

    /// The connection, for people.
    fn label(&self) -> String {
        format!("connection {:?} ({}@{}:{})", self.name, self.spec.user, self.spec.host, self.spec.port)
    }

    /// Tries key and pins, so that one that is missing or of no use is told before a plugin is called.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub async fn probe(&self, grants: &Grants) -> Result<(), SecretError> {
        self.material(grants).await.map(drop)
    }

    async fn material(&self, grants: &Grants) -> Result<Material, SecretError> {
        let (key, known_hosts) = (grants.resolve(&self.spec.key).await?, grants.resolve(&self.spec.known_hosts).await?);
        let unusable = |what: &str, source: &Source, why: &str| {
            SecretError::Unreadable(format!("{}: {what} ({source}) {why}", self.label()))
        };
        let digest = Sha256::new().chain_update(Sha256::digest(key.expose())).chain_update(known_hosts.expose());
        Ok(Material {
            key: ClientKey::parse(&key).map_err(|why| unusable("ssh.key", &self.spec.key, why))?,
            known_hosts: text(&known_hosts)
                .ok_or_else(|| unusable("ssh.knownHosts", &self.spec.known_hosts, "is no text"))?,
            digest: digest.finalize().into(),
        })
    }

    /// Whether a rule allows this command.
    fn allowed(&self, argv: &[String]) -> bool {
        self.spec.allow.is_empty() || self.spec.allow.iter().any(|beginning| argv.starts_with(beginning))
    }

    fn refuse(&self, argv: &[String]) -> Fault {
        let rules: Vec<_> = self.spec.allow.iter().map(|rule| format!("{rule:?}")).collect();
        // The first words are what rules are about; later ones may hold what no text should.
        let said: Vec<_> = argv.iter().take(2).collect();
        let what = format!(
            "the rules of ssh.allow ({}) hold no command that begins with {said:?}; add a rule to the Provider if it is meant",
            rules.join(", ")
        );
        self.fault(FaultKind::Denied, false, what)
    }
}

fn text(bytes: &SecretBytes) -> Option<String> {
    std::str::from_utf8(bytes.expose()).ok().map(str::to_owned)
}

impl Host for CallState {
    async fn exec(&mut self, connection: String, command: Command) -> wasmtime::Result<Result<Output, Fault>> {
        let watch = self.watch("ssh", self.grants.ssh(&connection).is_ok().then_some(connection.as_str()));
        let answer = self.watched_exec(connection, command).instrument(watch.span.clone()).await?;
        watch.ended(&answer);
        Ok(answer)
    }
}

impl CallState {
    /// Runs it over the connection.
    pub(in crate::plugin) async fn exec_now(
        &mut self,
        connection: String,
        command: Command,
    ) -> wasmtime::Result<Result<Output, Fault>> {
        let grants = self.grants.clone();
        let account = match grants.ssh(&connection) {
            Ok(account) => account.clone(),
            Err(why) => return Ok(Err(fault(FaultKind::UnknownConnection, false, why))),
        };
        // What the other functions run changes nothing, by the contract.
        let change = matches!(self.function, "create" | "delete");
        let before = self.progress.begin(format!("connection {connection:?}"), false);
        let sent = Arc::new(Sent::new(change.then(|| self.progress.clone())));
        let answer = exec(account, &grants, command, sent.clone()).await;
        self.progress.end(before || (change && sent.get()));
        Ok(answer)
    }
}

/// Bounded by the guest's wish and the host's maximum. The rest of the call bounds it too: a call that ends at its deadline
/// is dropped, and a dropped command is stopped.
async fn exec(account: Arc<Account>, grants: &Grants, command: Command, sent: Arc<Sent>) -> Result<Output, Fault> {
    let line = quote(&command.argv).map_err(|error| {
        let kind = if error == quote::QuoteError::TooLong { FaultKind::TooLarge } else { FaultKind::Denied };
        account.fault(kind, false, error.to_string())
    })?;
    if !account.allowed(&command.argv) {
        return Err(account.refuse(&command.argv));
    }
    if command.stdin.len() > STDIN_BYTES {
        let what = format!("standard input is over {STDIN_BYTES} bytes");
        return Err(account.fault(FaultKind::TooLarge, false, what));
    }
    let material = account.material(grants).await.map_err(|e| fault(FaultKind::Credential, false, e.to_string()))?;
    let limit = Duration::from_millis(command.timeout_ms.into()).min(COMMAND_TIMEOUT);
    let keep = (command.max_output as usize).min(OUTPUT_BYTES);
    Run { account, material, line, stdin: command.stdin, keep, limit, sent }.answer().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_account(change: impl FnOnce(&mut SshConnection)) -> Result<Account, String> {
        let source = Source { secret_ref: None, file: Some("/key".into()) };
        let mut spec = SshConnection {
            host: "kvm.example".into(),
            port: 22,
            user: "ops".into(),
            key: source.clone(),
            known_hosts: source,
            allow: vec![],
            permit: vec![],
        };
        change(&mut spec);
        Account::new("home1", &spec)
    }

    fn mk_argv(line: &str) -> Vec<String> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn rules_are_beginnings_word_by_word() {
        let account = mk_account(|spec| spec.allow = vec![mk_argv("virsh"), mk_argv("qemu-img info")]).expect("good");
        for (line, allowed) in [
            ("virsh", true),
            ("virsh list --all", true),
            ("virsh-install", false),
            ("qemu-img info a", true),
            ("qemu-img infos", false),
            ("qemu-img", false),
            ("sh -c virsh", false),
        ] {
            assert_eq!(account.allowed(&mk_argv(line)), allowed, "{line}");
        }
        let refused = account.refuse(&mk_argv("sh -c s3cret"));
        assert!(refused.message.contains(r#"["qemu-img", "info"]"#) && refused.message.contains(r#"["sh", "-c"]"#));
        assert!(!refused.message.contains("s3cret"), "{}", refused.message);
    }

    #[test]
    fn unusable_connections_say_what_to_change() {
        let error = |change: fn(&mut SshConnection)| mk_account(change).err().expect("it is refused");
        assert!(error(|spec| spec.host = "root@kvm".into()).contains("ssh.host"));
        assert!(error(|spec| spec.host = "a b".into()).contains("ssh.host"));
        assert!(error(|spec| spec.user = "a\nb".into()).contains("ssh.user"));
        assert!(error(|spec| spec.allow = vec![vec![]]).contains("empty rule"));
    }
}
