//! How the commands reach a running operator, and with which status they end.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use reqwest::{Client, Method, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::fleet::socket;

/// No request of a command takes longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
const COMMAND_PATIENCE: Duration = Duration::from_secs(600);

/// Where the operator is.
#[derive(Args)]
pub(super) struct Target {
    /// Data folder of the operator
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR")]
    pub data: PathBuf,
}

/// Why a command ended, where that has an exit status of its own; any other failure ends with 1.
#[derive(Debug)]
pub(super) enum Failure {
    /// What was asked for makes no sense.
    Usage(String),
    /// It did not come true in time.
    Timeout(String),
    /// Nobody answers there.
    Unreachable(String),
}

impl Failure {
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Timeout(_) => 3,
            Self::Unreachable(_) => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Timeout(why) | Self::Unreachable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Failure {}

/// Asks the operator, and reads what it answers.
pub(super) async fn read<T: DeserializeOwned>(data: &Path, path: &str) -> anyhow::Result<T> {
    let (status, answer) = ask(data, Method::GET, path).await?;
    expect(status, StatusCode::OK, &answer)?;
    Ok(serde_json::from_value(answer)?)
}

/// Fails with what the operator said, unless it said this.
pub(super) fn expect(status: StatusCode, expected: StatusCode, answer: &Value) -> anyhow::Result<()> {
    let says = || answer.get("detail").and_then(Value::as_str).unwrap_or("the operator refused").to_owned();
    anyhow::ensure!(status == expected, says());
    Ok(())
}

pub(super) async fn ask(data: &Path, method: Method, path: &str) -> anyhow::Result<(StatusCode, Value)> {
    tell(data, method, path, String::new()).await
}

pub(super) async fn tell(data: &Path, method: Method, path: &str, body: String) -> anyhow::Result<(StatusCode, Value)> {
    tell_within(PATIENCE, data, method, path, body).await
}

/// What may take longer than a look: thousands of objects, each brought to the disk.
pub(super) async fn command<T: DeserializeOwned>(data: &Path, path: &str, body: String) -> anyhow::Result<T> {
    let (status, answer) = tell_within(COMMAND_PATIENCE, data, Method::POST, path, body).await?;
    expect(status, StatusCode::OK, &answer)?;
    Ok(serde_json::from_value(answer)?)
}

async fn tell_within(
    patience: Duration,
    data: &Path,
    method: Method,
    path: &str,
    body: String,
) -> anyhow::Result<(StatusCode, Value)> {
    value(send(patience, data, method, path, body).await?).await
}

/// An answer that is no JSON, and may be long.
pub(super) async fn download(data: &Path, path: &str) -> anyhow::Result<Response> {
    let answer = send(COMMAND_PATIENCE, data, Method::GET, path, String::new()).await?;
    if answer.status() != StatusCode::OK {
        let (status, answer) = value(answer).await?;
        expect(status, StatusCode::OK, &answer)?;
        anyhow::bail!("the operator refused");
    }
    Ok(answer)
}

async fn send(patience: Duration, data: &Path, method: Method, path: &str, body: String) -> anyhow::Result<Response> {
    let socket = socket(data);
    let client = Client::builder().unix_socket(socket.as_path()).timeout(patience).build()?;
    let sent = client
        .request(method, format!("http://operator/{path}"))
        .header(reqwest::header::CONTENT_TYPE, "application/json")
        .body(body)
        .send()
        .await;
    sent.map_err(|error| {
        if error.is_connect() {
            let at = socket.display();
            Failure::Unreachable(format!("no operator answers at {at}: is it running with this --data folder?")).into()
        } else {
            anyhow::Error::from(error)
        }
    })
}

async fn value(answer: Response) -> anyhow::Result<(StatusCode, Value)> {
    let status = answer.status();
    let body = answer.bytes().await?;
    Ok((status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body)? }))
}
