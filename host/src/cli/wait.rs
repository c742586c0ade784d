//! `wait`: ends when a condition holds, or an object is gone.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::time::Instant;

use super::client::Failure;
use super::named::not_found;
use super::objects::Chosen;
use super::place::Place;
use crate::model::span::Span;

/// Between two looks.
const POLL: Duration = Duration::from_millis(200);

/// Wait for a condition
#[derive(Args)]
#[command(
    after_help = "Examples:\n  proxy-operator wait px/berlin --for condition=Ready --timeout 2m\n  proxy-operator wait proxy berlin lisbon --for delete"
)]
pub(super) struct WaitArgs {
    /// condition=TYPE, condition=TYPE=STATUS or delete
    #[arg(long = "for", value_name = "WHAT")]
    until: Until,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: Span,
    #[command(flatten)]
    chosen: Chosen<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Until {
    Deleted,
    Condition { name: String, status: String },
}

impl FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "delete" {
            return Ok(Self::Deleted);
        }
        let wrong = || "write condition=TYPE, condition=TYPE=True|False|Unknown, or delete".to_owned();
        let rest = text.strip_prefix("condition=").ok_or_else(wrong)?;
        let (name, status) = rest.split_once('=').unwrap_or((rest, "True"));
        let known = ["True", "False", "Unknown"].into_iter().find(|known| known.eq_ignore_ascii_case(status));
        let status = known.filter(|_| !name.is_empty()).ok_or_else(wrong)?.to_owned();
        Ok(Self::Condition { name: name.to_owned(), status })
    }
}

impl Until {
    /// The condition that is waited for, as the object has it.
    fn found<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        let Self::Condition { name, .. } = self else { return None };
        let all = object.pointer("/status/conditions")?.as_array()?;
        all.iter().find(|c| c.get("type").and_then(Value::as_str).is_some_and(|t| t.eq_ignore_ascii_case(name)))
    }

    fn holds(&self, object: &Value) -> bool {
        let Self::Condition { status, .. } = self else { return false };
        self.found(object).and_then(|c| c.get("status")).and_then(Value::as_str) == Some(status)
    }
}

pub(super) async fn wait(args: WaitArgs) -> anyhow::Result<()> {
    let names = args.chosen.names("waited for")?;
    if let Until::Condition { name, .. } = &args.until
        && args.chosen.target.is_elsewhere()
        && !name.eq_ignore_ascii_case("Ready")
    {
        return Err(Failure::Usage("of an operator elsewhere only condition=Ready and delete are known".into()).into());
    }
    let until = Instant::now() + args.timeout.duration();
    for one in names {
        let what = format!("{}/{}", one.kind.singular(), one.name);
        loop {
            let found = args.chosen.target.one(&one, &args.chosen.namespace).await?;
            match (&found, &args.until) {
                (None, Until::Deleted) => {
                    println!("{what} is gone");
                    break;
                }
                (None, Until::Condition { .. }) => return Err(not_found(&one, &args.chosen.namespace)),
                (Some(object), Until::Condition { .. }) if args.until.holds(object) => {
                    println!("{what} condition met");
                    break;
                }
                (Some(_), _) => {}
            }
            if Instant::now() >= until {
                let shown = found.as_ref().and_then(|object| args.until.found(object));
                let part = |key: &str| shown.and_then(|c| c.get(key)).and_then(Value::as_str).unwrap_or("Unknown");
                let now = match &args.until {
                    Until::Deleted => "it is still there".to_owned(),
                    Until::Condition { name, .. } => format!("{name} is {} ({})", part("status"), part("reason")),
                };
                let help = format!("`proxy-operator describe {what}` says why");
                return Err(Failure::Timeout(format!("{what}: not in time: {now}; {help}")).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_read() {
        let condition = |name: &str, status: &str| Until::Condition { name: name.into(), status: status.into() };
        assert_eq!("condition=Ready".parse(), Ok(condition("Ready", "True")));
        assert_eq!("condition=Ready=false".parse(), Ok(condition("Ready", "False")));
        assert_eq!("delete".parse(), Ok(Until::Deleted));
        for wrong in ["", "Ready", "condition=", "condition=Ready=maybe"] {
            assert!(wrong.parse::<Until>().is_err(), "{wrong}");
        }
    }
}
