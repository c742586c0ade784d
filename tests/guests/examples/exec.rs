//! Its functions run the commands that its config describes, one after the other:
//!
//! `{"run": [{"connection", "argv", "stdin": TEXT or BYTES, "timeoutMs", "maxOutput"}]}`
//!
//! `get` tells in the instance's message what came of the last one, as JSON: `status` or `signal`, `stdout` and `stderr`,
//! `truncated`; or `fault`, `sent` and `message`. Of output over 200 bytes it tells the length and the sum of the bytes.
//! `create` runs them as an author would, with the SDK.

use crawl_provider_sdk::bindings::crawl::provider::ssh as host;
use crawl_provider_sdk::ssh::{self, Ended};
use crawl_provider_sdk::*;
use serde_json::{Value, json};
use test_guests::{Fixture, Guest, instance};

struct Exec;

impl Fixture for Exec {
    const NAME: &'static str = "exec";

    fn create(config: &str, request: &Request) -> Result<Instance, Error> {
        let mut made = instance(Self::NAME, &request.identity);
        for wish in wishes(config)? {
            let command = command(&wish);
            let run =
                ssh::command(&connection(&wish), command.argv).stdin(command.stdin).timeout_ms(command.timeout_ms);
            made.message = Some(run.max_output(command.max_output).run()?.ok()?.text()?.to_owned());
        }
        Ok(made)
    }

    fn get(config: &str, identity: &Identity) -> Result<Presence, Error> {
        let mut found = instance(Self::NAME, identity);
        for wish in wishes(config)? {
            found.message = Some(raw(&wish).to_string());
        }
        Ok(Presence::Present(found))
    }
}

fn wishes(config: &str) -> Result<Vec<Value>, Error> {
    let config: Value = parse_config(config)?;
    Ok(config["run"].as_array().cloned().unwrap_or_default())
}

fn connection(wish: &Value) -> String {
    wish["connection"].as_str().unwrap_or("host").to_owned()
}

fn command(wish: &Value) -> host::Command {
    let number = |name: &str, default: u64| wish[name].as_u64().unwrap_or(default) as u32;
    host::Command {
        argv: wish["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect(),
        stdin: match &wish["stdin"] {
            Value::Number(bytes) => pattern(bytes.as_u64().unwrap_or(0)),
            stdin => stdin.as_str().unwrap_or_default().into(),
        },
        timeout_ms: number("timeoutMs", 60_000),
        max_output: number("maxOutput", 1 << 20),
    }
}

fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

fn raw(wish: &Value) -> Value {
    match host::exec(&connection(wish), &command(wish)) {
        Ok(output) => {
            let (stdout, stderr) = (told(&output.stdout), told(&output.stderr));
            let mut all = json!({"stdout": stdout, "stderr": stderr, "truncated": output.truncated});
            match output.ended {
                Ended::Status(status) => all["status"] = status.into(),
                Ended::Signal(signal) => all["signal"] = signal.into(),
            }
            all
        }
        Err(fault) => json!({"fault": format!("{:?}", fault.kind), "sent": fault.sent, "message": fault.message}),
    }
}

fn told(output: &[u8]) -> Value {
    match std::str::from_utf8(output) {
        Ok(text) if output.len() <= 200 => text.into(),
        _ => json!({"bytes": output.len(), "sum": output.iter().map(|byte| u64::from(*byte)).sum::<u64>()}),
    }
}

export_provider!(Guest<Exec>);
