//! `abandoned`: the instances that were given up, over the socket in the data folder.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode};

use super::client::{ask, expect};
use super::tables::table;
use crate::model::abandoned::Abandoned;

/// Instances that `skip-cleanup` gave up: they are reported and never deleted
#[derive(Subcommand)]
pub(super) enum AbandonedCommand {
    /// List them
    #[command(after_help = "Example:\n  proxy-operator abandoned list --data /var/lib/proxy-operator")]
    List(ListArgs),
    /// Forget one: if it is still there, it is deleted as nobody's
    #[command(after_help = "Example:\n  proxy-operator abandoned forget KEY --data /var/lib/proxy-operator")]
    Forget(ForgetArgs),
}

#[derive(Args)]
pub(super) struct ListArgs {
    /// Data folder of the operator
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR")]
    data: PathBuf,
    /// table, or json
    #[arg(long, short, default_value = "table", value_parser = ["table", "json"])]
    output: String,
}

#[derive(Args)]
pub(super) struct ForgetArgs {
    /// As `abandoned list` shows it
    key: String,
    /// Data folder of the operator
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR")]
    data: PathBuf,
}

pub(super) async fn run(command: AbandonedCommand) -> anyhow::Result<()> {
    match command {
        AbandonedCommand::List(args) => {
            let (status, answer) = ask(&args.data, Method::GET, "abandoned").await?;
            expect(status, StatusCode::OK, &answer)?;
            if args.output == "json" {
                println!("{}", serde_json::to_string_pretty(&answer)?);
                return Ok(());
            }
            let mut table = table(&["KEY", "PROXY", "PROVIDER", "INSTANCE", "SINCE"]);
            for one in serde_json::from_value::<Vec<Abandoned>>(answer)? {
                let proxy = format!("{}/{}", one.namespace, one.name);
                table.add_row([one.key(), proxy, one.provider.clone(), one.to_string(), one.since.to_string()]);
            }
            println!("{table}");
        }
        AbandonedCommand::Forget(args) => {
            let (status, answer) = ask(&args.data, Method::DELETE, &format!("abandoned/{}", args.key)).await?;
            expect(status, StatusCode::NO_CONTENT, &answer)?;
            println!("{} is forgotten", args.key);
        }
    }
    Ok(())
}
