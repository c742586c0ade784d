//! `leases`: who has what until when.

use clap::Args;
use jiff::Timestamp;

use super::get::document;
use super::place::Place;
use super::tables::{age, table};
use crate::lease::Mode;
use crate::rest::local::ShownLease;

/// Show who has leased what
#[derive(Args)]
#[command(
    after_help = "No credential is shown. With --server only the token's own leases are listed, and REST tells neither holder nor age.\n\nExamples:\n  proxy-operator leases -o wide\n  proxy-operator leases --server https://proxies.example.com --token-file token"
)]
pub(super) struct LeasesArgs {
    #[command(flatten)]
    place: Place,
    /// With --server: everybody's; the token needs the scope admin
    #[arg(long)]
    all: bool,
    /// Only those of proxies of this namespace
    #[arg(long, short)]
    namespace: Option<String>,
    /// How it is printed; the table shortens ids
    #[arg(long, short, default_value = "table", value_parser = ["table", "wide", "yaml", "json", "name"])]
    output: String,
}

pub(super) async fn leases(args: LeasesArgs) -> anyhow::Result<()> {
    let mut leases = args.place.leases(args.all).await?;
    leases.retain(|lease| args.namespace.as_ref().is_none_or(|namespace| lease.proxy.namespace == *namespace));
    leases.sort_by(|a, b| (&a.proxy.namespace, &a.proxy.name, &a.id).cmp(&(&b.proxy.namespace, &b.proxy.name, &b.id)));
    match args.output.as_str() {
        "name" => leases.iter().for_each(|lease| println!("{}", lease.id)),
        output @ ("json" | "yaml") => document(output, &leases)?,
        _ if leases.is_empty() => eprintln!("no leases found"),
        output => println!("{}", lease_table(&leases, output == "wide", Timestamp::now())),
    }
    Ok(())
}

/// A table of leases.
pub(super) fn lease_table(leases: &[ShownLease], wide: bool, now: Timestamp) -> comfy_table::Table {
    let mut header = vec!["LEASE", "NAMESPACE", "PROXY", "HOLDER", "MODE", "LOCATION", "AGE", "EXPIRES-IN"];
    if wide {
        header.extend(["PROVIDER", "TTL", "STATE"]);
    }
    let mut table = table(&header);
    for lease in leases {
        let id = if wide { lease.id.clone() } else { short(&lease.id) };
        let holder = lease.holder.clone().unwrap_or("-".into());
        let mode = if lease.mode == Mode::Shared { "shared" } else { "exclusive" };
        let since = lease.since.map_or("-".into(), |since| age(now.duration_since(since).as_secs()));
        let left = age(lease.expires_at.duration_since(now).as_secs());
        let location = lease.proxy.location.clone().unwrap_or_default();
        let (namespace, proxy) = (lease.proxy.namespace.clone(), lease.proxy.name.clone());
        let mut row = vec![id, namespace, proxy, holder, mode.to_owned(), location, since, left];
        if wide {
            let state = match (lease.draining, lease.healthy) {
                (true, _) => "draining",
                (false, true) => "healthy",
                (false, false) => "unhealthy",
            };
            row.extend([lease.proxy.provider.clone(), format!("{}s", lease.ttl_seconds), state.to_owned()]);
        }
        table.add_row(row);
    }
    table
}

/// The part of an id that differs most.
fn short(id: &str) -> String {
    let tail: String = id.chars().skip(id.chars().count().saturating_sub(10)).collect();
    format!("…{tail}")
}
