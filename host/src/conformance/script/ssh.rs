//! Scripted hosts: commands that are answered without a connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use crate::plugin::intercept::Told;

/// A host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SshHost {
    /// The connection that leads to it.
    pub connection: String,
    /// What it answers: the first that fits.
    pub commands: Vec<Command>,
}

/// A command and its answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Its words. `*` in a word stands for any text, a last word `...` for any further words.
    pub argv: Vec<String>,
    /// Variables that must have these values; one that was never set is empty.
    #[serde(default)]
    pub when: BTreeMap<String, String>,
    /// Variables that it sets.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Exit status.
    #[serde(default)]
    pub status: u32,
    /// Standard output.
    #[serde(default)]
    pub stdout: String,
    /// Standard error.
    #[serde(default)]
    pub stderr: String,
}

/// All scripted hosts with their variables.
#[derive(Clone)]
pub(in crate::conformance) struct Commands {
    hosts: Arc<Vec<SshHost>>,
    variables: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Commands {
    /// None when no host is scripted.
    pub fn new(hosts: &[SshHost]) -> Option<Self> {
        (!hosts.is_empty()).then(|| Self { hosts: Arc::new(hosts.to_vec()), variables: Arc::default() })
    }

    /// Forgets all variables.
    pub fn reset(&self) {
        self.variables.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The answer to a command; none when the connection is not scripted.
    pub fn answer(&self, connection: &str, argv: &[String]) -> Option<Told> {
        let host = self.hosts.iter().find(|host| host.connection == connection)?;
        let mut variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = |(name, value): (&String, &String)| variables.get(name).map_or("", String::as_str) == value;
        let fits = |command: &&Command| fits(&command.argv, argv) && command.when.iter().all(holds);
        Some(match host.commands.iter().find(fits) {
            Some(command) => {
                variables.extend(command.set.clone());
                Told::Ssh {
                    status: command.status,
                    stdout: command.stdout.clone().into_bytes(),
                    stderr: command.stderr.clone().into_bytes(),
                }
            }
            // As a shell says it.
            None => {
                let stderr = format!("{}: command not found", argv.join(" ")).into_bytes();
                Told::Ssh { status: 127, stdout: vec![], stderr }
            }
        })
    }
}

fn fits(pattern: &[String], argv: &[String]) -> bool {
    match pattern.split_last() {
        Some((last, before)) if last == "..." => {
            argv.len() >= before.len() && before.iter().zip(argv).all(|(pattern, word)| word_fits(pattern, word))
        }
        _ => pattern.len() == argv.len() && pattern.iter().zip(argv).all(|(pattern, word)| word_fits(pattern, word)),
    }
}

/// Pieces between the stars stand in the word in this order, the first at its begin and the last at its end.
fn word_fits(pattern: &str, word: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == word };
    let Some(mut left) = word.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for piece in middle.split('*') {
        match left.split_once(piece) {
            Some((_, after)) => left = after,
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn patterns_fit_words() {
        for (pattern, argv, expected) in [
            ("virsh list --all", "virsh list --all", true),
            ("virsh list", "virsh list --all", false),
            ("virsh ...", "virsh", true),
            ("virsh ...", "virsh start px-1", true),
            ("virsh start px-*", "virsh start px-1", true),
            ("virsh start *-1", "virsh start px-2", false),
            ("cat /a/*/b*.xml", "cat /a/x/bc.xml", true),
            ("cat /a/*/b*.xml", "cat /a/x/c.xml", false),
            ("*", "", true),
        ] {
            assert_eq!(fits(&words(pattern), &words(argv)), expected, "{pattern} {argv}");
        }
    }

    #[test]
    fn variables_are_a_hosts_memory() {
        let script = super::super::Script::parse(
            "ssh: [{connection: host, commands: [
               {argv: [state], when: {made: 'yes'}, stdout: running},
               {argv: [state], status: 1, stderr: no such domain},
               {argv: [make, ...], set: {made: 'yes'}}]}]",
        )
        .unwrap();
        let commands = Commands::new(&script.ssh).unwrap();
        let status = |text: &str| match commands.answer("host", &words(text)) {
            Some(Told::Ssh { status, .. }) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!((status("state"), status("make a b"), status("state"), status("other")), (1, 0, 0, 127));
        commands.reset();
        assert_eq!(status("state"), 1);
        assert_eq!(commands.answer("other", &words("state")), None);
    }
}
