//! `token`: API tokens.

use clap::Subcommand;
use jiff::Timestamp;

use crate::model::naming::is_subdomain;
use crate::rest::auth::{Scope, mint};

/// Make API tokens
#[derive(Subcommand)]
pub(super) enum TokenCommand {
    /// Print a new token once, to standard error, and the Secret that lets it in, to standard output
    #[command(
        after_help = "Examples:\n  proxy-operator token create crawler > manifests/token.yaml\n  proxy-operator token create ops --scopes read,admin --expires 2030-01-31T00:00:00Z | kubectl apply -f -"
    )]
    Create {
        /// Its name; leases belong to it
        name: String,
        /// read, allocate, admin; with commas
        #[arg(long, value_delimiter = ',', default_value = "read,allocate")]
        scopes: Vec<Scope>,
        /// Namespaces whose proxies it may use; with commas
        #[arg(long, value_delimiter = ',', default_value = "default")]
        namespaces: Vec<String>,
        /// Namespace of the Secret: the operator's own
        #[arg(long, default_value = "proxy-operator")]
        namespace: String,
        /// Date from which it is refused, for example 2030-01-31T00:00:00Z [default: never]
        #[arg(long)]
        expires: Option<Timestamp>,
    },
}

pub(super) fn run(command: TokenCommand) -> anyhow::Result<()> {
    let TokenCommand::Create { name, scopes, namespaces, namespace, expires } = command;
    for each in namespaces.iter().chain([&name, &namespace]) {
        anyhow::ensure!(is_subdomain(each), "{each:?} is no name: lower-case letters, digits, '-' and '.'");
    }
    let new = mint(&name, &namespace, &scopes, &namespaces, expires);
    // The token to the terminal, the manifest to a file: `token create NAME > NAME.yaml`.
    eprintln!("token (shown once): {}", new.token);
    print!("{}", new.manifest);
    Ok(())
}
