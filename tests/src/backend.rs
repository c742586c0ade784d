//! What every lab has beside its operator: a sandbox cloud, and a judge that outlives the operator, since proxies may reach
//! the one that they were made with.

use std::path::Path;

use crate::process::Process;

/// The cloud's token.
pub const CLOUD_TOKEN: &str = "sandbox-cloud-token-of-the-lab";

/// A cloud and a judge on loopback.
pub struct Backend {
    /// The cloud; none after an outage.
    pub cloud: Option<Process>,
    _judge: Process,
    /// URL of the cloud's API.
    pub cloud_url: String,
    /// URL of the judge.
    pub judge_url: String,
}

impl Backend {
    /// Starts both; their files go into `dir`.
    pub fn start(dir: &Path) -> Self {
        let token = dir.join("cloud-token");
        std::fs::write(&token, CLOUD_TOKEN).unwrap();
        let token = token.display().to_string();
        let any = "127.0.0.1:0";
        let (cloud, cloud_says) =
            Process::start(&["sandbox-cloud", "--listen", any, "--token-file", &token], &dir.join("cloud.log"));
        let (judge, judge_says) = Process::start(&["judge", "--listen", any], &dir.join("judge.log"));
        let url = |line: &str| line.split_whitespace().last().unwrap().to_owned();
        Self { cloud: Some(cloud), _judge: judge, cloud_url: url(&cloud_says), judge_url: url(&judge_says) }
    }
}
