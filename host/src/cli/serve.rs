//! `forward-proxy`, `judge` and `sandbox-cloud`: the servers beside the operator.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::told_to_stop;
use crate::{forward_proxy, health, sandbox_cloud};

/// Run a forward proxy
#[derive(Args)]
#[command(
    after_help = "Examples:\n  proxy-operator forward-proxy --login-file login --listen 127.0.0.1:3128\n  proxy-operator forward-proxy --protocol socks5 --login-file login --connect-port 443"
)]
pub(super) struct ForwardProxyArgs {
    /// Address to listen on
    #[arg(long, env = "PROXY_OPERATOR_LISTEN", value_name = "ADDR", default_value = "0.0.0.0:3128")]
    listen: SocketAddr,
    /// http (forward and CONNECT) or socks5
    #[arg(long, env = "PROXY_OPERATOR_PROTOCOL", default_value = "http", value_parser = ["http", "socks5"])]
    protocol: String,
    /// File that holds user:password; without it the proxy is open to everybody
    #[arg(long, env = "PROXY_OPERATOR_LOGIN_FILE", value_name = "FILE", required_unless_present = "open")]
    login_file: Option<PathBuf>,
    /// Serve without user and password
    #[arg(long, conflicts_with = "login_file")]
    open: bool,
    /// Port that may be tunnelled to; may be repeated
    #[arg(long = "connect-port", value_name = "PORT", default_values_t = forward_proxy::DEFAULT_CONNECT_PORTS)]
    connect_ports: Vec<u16>,
    /// Target that may be reached although it is private; may be repeated
    #[arg(long = "allow-target", value_name = "HOST:PORT")]
    allow_targets: Vec<forward_proxy::Target>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = forward_proxy::DEFAULT_MAX_CONNECTIONS)]
    max_connections: NonZeroUsize,
}

/// Run a judge for probes
#[derive(Args)]
#[command(after_help = "Example:\n  proxy-operator judge --listen 127.0.0.1:8082")]
pub(super) struct JudgeArgs {
    /// Address to listen on
    #[arg(long, env = "PROXY_OPERATOR_LISTEN", value_name = "ADDR", default_value = "0.0.0.0:8082")]
    listen: SocketAddr,
}

/// Run a small cloud of real proxies, for trying out
#[derive(Args)]
#[command(after_help = "Example:\n  echo sandbox-token > token && proxy-operator sandbox-cloud --token-file token")]
pub(super) struct SandboxCloudArgs {
    /// Address of its API
    #[arg(long, env = "PROXY_OPERATOR_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,
    /// Name or address under which its proxies listen and are announced
    #[arg(long, env = "PROXY_OPERATOR_ADVERTISE", value_name = "HOST", default_value = "127.0.0.1")]
    advertise: String,
    /// File that holds the API's token
    #[arg(long, env = "PROXY_OPERATOR_TOKEN_FILE", value_name = "FILE")]
    token_file: PathBuf,
    /// Instances that each of its two zones holds
    #[arg(long, env = "PROXY_OPERATOR_CAPACITY", value_name = "N", default_value_t = 100)]
    capacity: usize,
}

/// A token that is cancelled when the process is told to stop.
fn stop_token() -> CancellationToken {
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        told_to_stop().await;
        told.cancel();
    });
    stop
}

async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.with_context(|| format!("--listen {listen} cannot be listened on"))
}

pub(super) fn read_line(flag: &str, path: &PathBuf) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{flag} {}", path.display()))?;
    let line = text.trim_end_matches(['\r', '\n']).to_owned();
    anyhow::ensure!(!line.is_empty(), "{flag} {} is empty", path.display());
    Ok(line)
}

pub(super) async fn forward_proxy(args: ForwardProxyArgs) -> anyhow::Result<()> {
    let protocol =
        if args.protocol == "socks5" { forward_proxy::Protocol::Socks5 } else { forward_proxy::Protocol::Http };
    let mut options = forward_proxy::Options::new(protocol);
    if let Some(path) = args.login_file.filter(|_| !args.open) {
        let line = read_line("--login-file", &path)?;
        let (username, password) =
            line.split_once(':').with_context(|| format!("--login-file {} must hold user:password", path.display()))?;
        options.login = Some(forward_proxy::Login { username: username.into(), password: password.into() });
    }
    options.connect_ports = args.connect_ports;
    options.allow_targets = args.allow_targets;
    options.max_connections = args.max_connections;
    let listener = bind(args.listen).await?;
    println!("forward proxy ({}) listening on {}", args.protocol, listener.local_addr()?);
    forward_proxy::serve(listener, options, stop_token()).await;
    Ok(())
}

pub(super) async fn judge(args: JudgeArgs) -> anyhow::Result<()> {
    let listener = bind(args.listen).await?;
    println!("judge listening on http://{}{}", listener.local_addr()?, health::judge::PATH);
    Ok(health::judge::serve(listener, stop_token()).await?)
}

pub(super) async fn sandbox_cloud(args: SandboxCloudArgs) -> anyhow::Result<()> {
    let token = read_line("--token-file", &args.token_file)?;
    let options = sandbox_cloud::Options::new(args.listen, args.advertise, token);
    let cloud = sandbox_cloud::bind(sandbox_cloud::Options { capacity_per_zone: args.capacity, ..options })
        .await
        .with_context(|| format!("--listen {} cannot be listened on", args.listen))?;
    println!("sandbox cloud listening on http://{}", cloud.local_addr());
    cloud.serve(stop_token()).await;
    Ok(())
}
