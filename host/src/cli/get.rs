//! `get`: lists of objects, once or as they change.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::client::Failure;
use super::named::{Kind, Named, named, not_found};
use super::place::Place;
use super::selector::Selector;
use super::tables::{event_table, header, object_table, row, text};
use super::terminal::coloured;
use crate::store::Event;

/// Between two looks of `--watch`.
const WATCH: Duration = Duration::from_secs(1);

/// List objects
#[derive(Args)]
#[command(
    after_help = "Examples:\n  proxy-operator get proxies -o wide\n  proxy-operator get px berlin -o yaml\n  proxy-operator get px -l team=blue --watch\n  proxy-operator get providers --server https://proxies.example.com --token-file token"
)]
pub(super) struct GetArgs {
    /// KIND, KIND NAME… or KIND/NAME…; kinds are proxies (px), providers (pxp) and events
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<String>,
    #[command(flatten)]
    place: Place,
    /// Only of this namespace; for objects by name the default is `default`, for lists all
    #[arg(long, short)]
    namespace: Option<String>,
    /// Of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Only those with these labels, for example team=blue,stage!=test
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<Selector>,
    /// How it is printed
    #[arg(long, short, default_value = "table", value_parser = ["table", "wide", "yaml", "json", "name"])]
    output: String,
    /// Then print each that changes, until Ctrl-C
    #[arg(long, short)]
    watch: bool,
}

pub(super) async fn get(args: GetArgs) -> anyhow::Result<()> {
    let names = named(&args.what)?;
    let kind = Kind::parse(args.what[0].split('/').next().unwrap_or_default())?;
    if names.iter().any(|one| one.kind != kind) {
        return Err(Failure::Usage("objects of one kind at a time".into()).into());
    }
    match kind {
        Kind::Proxies | Kind::Providers if args.watch => watch(&args, &names, kind).await,
        Kind::Proxies | Kind::Providers => show(&args, &names, kind).await,
        Kind::Secrets => Err(Failure::Usage("Secrets are never shown".into()).into()),
        Kind::Events if args.watch => {
            Err(Failure::Usage("events are not watched: `proxy-operator logs --follow` shows them as they come".into())
                .into())
        }
        Kind::Events if args.output == "name" => {
            Err(Failure::Usage("events have no names: use -o table, wide, yaml or json".into()).into())
        }
        Kind::Events => {
            let events = args.place.list(kind).await?;
            let events = events.into_iter().map(serde_json::from_value).collect::<Result<Vec<Event>, _>>()?;
            match args.output.as_str() {
                output @ ("json" | "yaml") => document(output, &events),
                _ => {
                    println!("{}", event_table(&events));
                    Ok(())
                }
            }
        }
    }
}

/// Those that are meant, in order.
async fn chosen(args: &GetArgs, names: &[Named], kind: Kind) -> anyhow::Result<Vec<Value>> {
    let mut all = args.place.list(kind).await?;
    let by_name = (!names.is_empty() && !args.all_namespaces).then_some("default");
    let namespace = args.namespace.as_deref().or(by_name);
    let labels = |object: &Value| -> BTreeMap<String, String> {
        serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default()
    };
    all.retain(|object| {
        let of = object["metadata"]["namespace"].as_str();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        // Those of no namespace are in each.
        namespace.is_none_or(|wanted| of.is_none_or(|of| of == wanted))
            && (names.is_empty() || names.iter().any(|one| one.name == name))
            && args.selector.as_ref().is_none_or(|selector| selector.fits(&labels(object)))
    });
    all.sort_by_key(|object| (text(object, "/metadata/namespace"), text(object, "/metadata/name")));
    Ok(all)
}

/// Fails when one that was named is not there.
fn all_there(args: &GetArgs, names: &[Named], found: &[Value]) -> anyhow::Result<()> {
    let missing = names.iter().find(|one| !found.iter().any(|object| object["metadata"]["name"] == one.name));
    match missing {
        Some(one) => Err(not_found(one, args.namespace.as_deref().unwrap_or("default"))),
        None => Ok(()),
    }
}

async fn show(args: &GetArgs, names: &[Named], kind: Kind) -> anyhow::Result<()> {
    let all = chosen(args, names, kind).await?;
    all_there(args, names, &all)?;
    match args.output.as_str() {
        "name" => all.iter().for_each(|object| println!("{}", short(kind, object))),
        output @ ("json" | "yaml") => match all.as_slice() {
            [one] if names.len() == 1 => document(output, one)?,
            several => document(output, &several)?,
        },
        _ if all.is_empty() => eprintln!("no {} found", kind.plural()),
        output => println!("{}", coloured(&object_table(kind, &all, output == "wide").to_string())),
    }
    Ok(())
}

fn short(kind: Kind, object: &Value) -> String {
    format!("{}/{}", kind.singular(), text(object, "/metadata/name"))
}

/// Prints what is there, then what changes, for ever; ends when nobody reads any more.
async fn watch(args: &GetArgs, names: &[Named], kind: Kind) -> anyhow::Result<()> {
    let wide = args.output == "wide";
    let mut seen: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut widths: Vec<usize> = Vec::new();
    let mut first = true;
    loop {
        let all = chosen(args, names, kind).await?;
        if first {
            all_there(args, names, &all)?;
        }
        let mut now = BTreeMap::new();
        for object in all {
            // What changes without being shown is no news.
            let shown = match args.output.as_str() {
                "json" => vec![serde_json::to_string_pretty(&object)?],
                "yaml" => vec![format!("---\n{}", serde_saphyr::to_string(&object)?.trim_end())],
                "name" => vec![short(kind, &object)],
                _ => row(kind, &object, wide),
            };
            now.insert((text(&object, "/metadata/namespace"), text(&object, "/metadata/name")), shown);
        }
        let mut lines = Vec::new();
        for (key, shown) in &now {
            if seen.get(key).is_none_or(|before| before != shown) {
                lines.push(shown.clone());
            }
        }
        let is_table = matches!(args.output.as_str(), "table" | "wide");
        for (_, shown) in seen.iter().filter(|(key, _)| is_table && !now.contains_key(*key)) {
            let mut gone = shown.clone();
            if let Some(reason) = header(kind, wide).iter().position(|column| *column == "REASON") {
                gone[reason] = "(gone)".into();
            }
            lines.push(gone);
        }
        if is_table && widths.is_empty() && !lines.is_empty() {
            let heads: Vec<String> = header(kind, wide).iter().map(ToString::to_string).collect();
            widths = (0..heads.len())
                .map(|column| {
                    let cells = lines.iter().map(|row| &row[column]).chain([&heads[column]]);
                    cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
                })
                .collect();
            if writeln!(std::io::stdout(), "{}", padded(&heads, &widths)).is_err() {
                return Ok(());
            }
        }
        for shown in &lines {
            if writeln!(std::io::stdout(), "{}", coloured(&padded(shown, &widths))).is_err() {
                return Ok(());
            }
        }
        (seen, first) = (now, false);
        tokio::time::sleep(WATCH).await;
    }
}

/// Cells under each other, also those of later rows.
fn padded(cells: &[String], widths: &[usize]) -> String {
    let cell =
        |(index, cell): (usize, &String)| format!("{cell:<width$}", width = widths.get(index).copied().unwrap_or(0));
    cells.iter().enumerate().map(cell).collect::<Vec<_>>().join("   ").trim_end().to_owned()
}

pub(super) fn document(format: &str, value: &impl Serialize) -> anyhow::Result<()> {
    if format == "json" {
        println!("{}", serde_json::to_string_pretty(value)?);
    } else {
        // By way of JSON, so that both show the same fields.
        println!("{}", serde_saphyr::to_string(&serde_json::to_value(value)?)?.trim_end());
    }
    Ok(())
}
