//! `run`: the operator.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::fleet::{Fleet, Settings};

/// Run the operator
#[derive(Args)]
pub(super) struct RunArgs {
    /// Without Kubernetes: objects from --manifests, state in --data
    #[arg(long, env = "PROXY_OPERATOR_STANDALONE")]
    standalone: bool,
    /// Folder of manifests (*.yaml), watched
    #[arg(long, env = "PROXY_OPERATOR_MANIFESTS", value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Folder of the embedded database
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// Folder of plugins (NAME.wasm), watched
    #[arg(long, env = "PROXY_OPERATOR_PLUGIN_DIR", value_name = "DIR")]
    plugin_dir: PathBuf,
    /// Folder of compiled code [default: cache in --data]
    #[arg(long, env = "PROXY_OPERATOR_CACHE_DIR", value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Folder of API tokens, as `token create` prints them
    #[arg(long, env = "PROXY_OPERATOR_TOKEN_DIR", value_name = "DIR")]
    token_dir: Option<PathBuf>,
    /// Folder below which `file` references of Providers may point; may be repeated
    #[arg(long, env = "PROXY_OPERATOR_SECRET_FILES", value_name = "DIR", default_value = "/etc/proxy-operator")]
    secret_files: Vec<PathBuf>,
    /// Address of the REST API
    #[arg(long, env = "PROXY_OPERATOR_REST_ADDR", value_name = "ADDR", default_value = "0.0.0.0:8080")]
    rest_addr: SocketAddr,
    /// Address of /healthz and /readyz
    #[arg(long, env = "PROXY_OPERATOR_HEALTH_ADDR", value_name = "ADDR", default_value = "0.0.0.0:8081")]
    health_addr: SocketAddr,
    /// Address of the judge that proxies are probed against
    #[arg(long, env = "PROXY_OPERATOR_JUDGE_ADDR", value_name = "ADDR", default_value = "0.0.0.0:8082")]
    judge_addr: SocketAddr,
    /// URL under which proxies reach the judge [default: this machine's, at --judge-addr]
    #[arg(long, env = "PROXY_OPERATOR_JUDGE_URL", value_name = "URL")]
    judge_url: Option<String>,
    /// Address of /metrics
    #[arg(long, env = "PROXY_OPERATOR_METRICS_ADDR", value_name = "ADDR", default_value = "0.0.0.0:9090")]
    metrics_addr: SocketAddr,
}

pub(super) async fn run(args: RunArgs) -> anyhow::Result<()> {
    let (Some(manifests), Some(data)) = (args.manifests, args.data.filter(|_| args.standalone)) else {
        anyhow::bail!("this version runs standalone: give --standalone, --manifests DIR and --data DIR");
    };
    let fleet = Fleet::start(Settings {
        cache_dir: args.cache_dir.unwrap_or_else(|| data.join("cache")),
        manifests,
        data,
        plugin_dir: args.plugin_dir,
        token_dir: args.token_dir,
        secret_files: args.secret_files,
        rest_addr: args.rest_addr,
        health_addr: args.health_addr,
        judge_addr: args.judge_addr,
        metrics_addr: args.metrics_addr,
        judge_url: args.judge_url,
    })
    .await?;
    // For whoever starts the operator with port 0, and for people.
    println!(
        "proxy-operator is up: rest=http://{} health=http://{} judge={} metrics=http://{}",
        fleet.rest, fleet.health, fleet.judge_url, fleet.metrics
    );
    super::told_to_stop().await;
    tracing::info!("stopping");
    fleet.stop().await;
    Ok(())
}
