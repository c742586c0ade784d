//! `run`: the operator.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{ArgAction, Args};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};

use super::config::FromFile;
use super::fleet::{Fleet, Place, Settings};
use super::plugin_args::PluginArgs;
use super::supervisor;
use crate::model::span::Span;
use crate::rest::local::Logging;
use crate::store::kubernetes::election::Times;

/// Run the operator
#[derive(Args)]
#[command(
    after_help = "Flags go before the environment, and the environment before the file of --config, which holds flags by name;\n`proxy-operator config view` shows each setting and where it comes from.\n\nExamples:\n  proxy-operator run --standalone --manifests manifests --data data --plugin-dir plugins\n  proxy-operator run --config /etc/proxy-operator/config.yaml\n  proxy-operator run --kubeconfig ~/.kube/config --data /var/lib/proxy-operator"
)]
pub(super) struct RunArgs {
    /// File of settings (YAML): flags by name, such as `rest-addr: 127.0.0.1:8080`
    #[arg(long, env = "PROXY_OPERATOR_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Without Kubernetes: objects from --manifests, state in --data
    #[arg(long, env = "PROXY_OPERATOR_STANDALONE", requires = "manifests")]
    standalone: bool,
    /// Standalone: folder of manifests (*.yaml), watched
    #[arg(long, env = "PROXY_OPERATOR_MANIFESTS", value_name = "DIR", requires = "standalone")]
    manifests: Option<PathBuf>,
    /// Kubernetes: how the API server is reached [default: KUBECONFIG, or as a pod of the cluster]
    #[arg(long, value_name = "FILE", conflicts_with = "standalone")]
    kubeconfig: Option<PathBuf>,
    /// Kubernetes: the operator's own namespace, with its Secrets and plugins
    #[arg(long, env = "PROXY_OPERATOR_NAMESPACE", value_name = "NAME", default_value = "proxy-operator")]
    namespace: String,
    /// Kubernetes: id of this installation, part of every owner tag [default: UID of namespace kube-system]
    #[arg(long, env = "PROXY_OPERATOR_INSTALLATION_ID", value_name = "ID", conflicts_with = "standalone")]
    installation_id: Option<String>,
    /// Kubernetes: whether replicas elect one that leads; without it there must be one replica only
    #[arg(long, env = "PROXY_OPERATOR_LEADER_ELECT", value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    leader_elect: bool,
    /// Kubernetes: for how long a leader that is not heard of is still the leader
    #[arg(long, env = "PROXY_OPERATOR_LEADER_ELECT_LEASE_DURATION", value_name = "TIME", default_value = "15s")]
    leader_elect_lease_duration: Span,
    /// Kubernetes: for how long a leader that cannot renew its lease goes on
    #[arg(long, env = "PROXY_OPERATOR_LEADER_ELECT_RENEW_DEADLINE", value_name = "TIME", default_value = "10s")]
    leader_elect_renew_deadline: Span,
    /// Kubernetes: between two tries to take or renew the lease
    #[arg(long, env = "PROXY_OPERATOR_LEADER_ELECT_RETRY_PERIOD", value_name = "TIME", default_value = "2s")]
    leader_elect_retry_period: Span,
    /// Folder of the embedded database: standalone all state, in Kubernetes the leases
    #[arg(long, env = "PROXY_OPERATOR_DATA", value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    plugins: PluginArgs,
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
    /// For how long an instance must have been named by no Proxy before it is deleted
    #[arg(long, env = "PROXY_OPERATOR_GC_GRACE", value_name = "TIME", default_value = "2m")]
    gc_grace: Span,
    /// Only tell of instances that no Proxy names; delete none
    #[arg(long, env = "PROXY_OPERATOR_GC_DRY_RUN")]
    gc_dry_run: bool,
}

pub(super) async fn run(args: RunArgs, logging: Logging, mut file: FromFile) -> anyhow::Result<()> {
    // From the first moment: the default of this signal is to end.
    let mut hangup = signal(SignalKind::hangup())?;
    let place = match args.manifests {
        Some(manifests) => Place::Standalone { manifests },
        None => {
            let times = Times {
                lease: args.leader_elect_lease_duration.duration(),
                renew: args.leader_elect_renew_deadline.duration(),
                retry: args.leader_elect_retry_period.duration(),
            };
            let election = args.leader_elect.then(|| times.checked()).transpose().map_err(anyhow::Error::msg)?;
            if let Some(id) = &args.installation_id {
                let fits =
                    !id.is_empty() && id.len() <= 63 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
                anyhow::ensure!(fits, "--installation-id {id:?}: up to 63 letters, digits and hyphens");
            }
            let config = Box::new(cluster(args.kubeconfig).await?);
            Place::Kubernetes { config, namespace: args.namespace, installation: args.installation_id, election }
        }
    };
    let mut fleet = Fleet::start(Settings {
        place,
        data: args.data,
        secret_files: args.secret_files,
        plugins: args.plugins,
        token_dir: args.token_dir,
        rest_addr: args.rest_addr,
        health_addr: args.health_addr,
        judge_addr: args.judge_addr,
        metrics_addr: args.metrics_addr,
        judge_url: args.judge_url,
        gc_grace: args.gc_grace.duration(),
        gc_dry_run: args.gc_dry_run,
        logging: logging.clone(),
    })
    .await?;
    // For whoever starts the operator with port 0, and for people.
    println!(
        "proxy-operator is up: rest=http://{} health=http://{} judge={} metrics=http://{}",
        fleet.rest, fleet.health, fleet.judge_url, fleet.metrics
    );
    if let Some(file) = &args.config {
        tracing::info!(file = %file.display(), "settings were read");
    }
    supervisor::started();
    let reload = async {
        while let Some(()) = hangup.recv().await {
            supervisor::reloading();
            if let Err(error) = file.reload(&logging) {
                tracing::error!(error = format!("{error:#}"), "settings stay as they are");
            }
            supervisor::started();
        }
        std::future::pending().await
    };
    tokio::select! {
        () = super::told_to_stop() => {}
        // At once, whatever is under way: somebody else may lead by now.
        error = fleet.failed() => return Err(error),
        () = reload => {}
        () = supervisor::alive() => {}
    }
    tracing::info!("stopping");
    supervisor::stopping();
    fleet.stop().await;
    Ok(())
}

/// How to reach the API server that the kubeconfig names, or that of the cluster that this is a pod of.
pub(super) async fn cluster(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Config> {
    match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(&path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            Ok(kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?)
        }
        None => kube::Config::infer()
            .await
            .context("no cluster is configured: give --kubeconfig, or --standalone with --manifests"),
    }
}
