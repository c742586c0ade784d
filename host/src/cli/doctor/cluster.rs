//! What `doctor` looks at in a cluster, with the rights of who asks.

use std::path::PathBuf;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;

use super::Report;
use crate::cli::run::cluster;
use crate::cli::tables::{ready, text};
use crate::model::provider::Provider;
use crate::model::proxy::Proxy;
use crate::model::{API_VERSION, PLUGIN_LABEL};
use crate::store::kubernetes::election::LEASE;

pub(super) async fn look(kubeconfig: PathBuf, namespace: &str, report: &mut Report) -> anyhow::Result<()> {
    let shown = kubeconfig.display().to_string();
    let client = Client::try_from(cluster(Some(kubeconfig)).await?)?;
    match client.apiserver_version().await {
        Ok(version) => report.good(&format!("the API server answers: {}", version.git_version)),
        Err(error) => {
            let remedy = format!("`kubectl --kubeconfig {shown} version` must work first");
            report.bad(&format!("the API server does not answer: {error}"), &remedy);
            return Ok(());
        }
    }
    let served = definitions(&client, report).await?;
    if Api::<Namespace>::all(client.clone()).get_opt(namespace).await?.is_none() {
        report.bad(&format!("there is no namespace {namespace}"), &format!("kubectl create namespace {namespace}"));
        return Ok(());
    }
    leader(&client, namespace, report).await?;
    let labelled = ListParams::default().labels(&format!("{PLUGIN_LABEL}=true"));
    let plugins = Api::<ConfigMap>::namespaced(client.clone(), namespace).list_metadata(&labelled).await?.items.len();
    if plugins == 0 {
        report.note(&format!(
            "no ConfigMap of namespace {namespace} holds a plugin: `proxy-operator plugin pack` makes some"
        ));
    }
    if served {
        providers(&objects(Api::<Provider>::all(client.clone())).await?, report);
        super::proxies(&objects(Api::<Proxy>::all(client)).await?, report);
    }
    Ok(())
}

/// Whether our kinds are served.
async fn definitions(client: &Client, report: &mut Report) -> anyhow::Result<bool> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let wrong = report.wrong;
    for ours in crate::model::manifest::crds() {
        let name = text(&ours, "/metadata/name");
        let version = API_VERSION.rsplit('/').next().unwrap_or_default();
        let found = api.get_opt(&name).await?;
        let serves = found.is_some_and(|crd| crd.spec.versions.iter().any(|one| one.name == version && one.served));
        if !serves {
            let what = format!("the cluster does not serve {name} in version {version}");
            report.bad(&what, "proxy-operator crd | kubectl apply --server-side -f -");
        }
    }
    if report.wrong == wrong {
        report.good(&format!("the kinds of {API_VERSION} are served"));
    }
    Ok(report.wrong == wrong)
}

async fn leader(client: &Client, namespace: &str, report: &mut Report) -> anyhow::Result<()> {
    let lease = Api::<Lease>::namespaced(client.clone(), namespace).get_opt(LEASE).await?;
    let Some(spec) = lease.and_then(|lease| lease.spec) else {
        report.note(&format!("no replica has led in namespace {namespace} yet, or there is one without election"));
        return Ok(());
    };
    let holder = spec.holder_identity.unwrap_or_default();
    let silent = spec.renew_time.map(|at| Timestamp::now().duration_since(at.0).as_secs());
    let promised = spec.lease_duration_seconds.unwrap_or_default();
    let remedy = format!("`kubectl -n {namespace} get pods` and the log of the operator's pod say why");
    match silent {
        _ if holder.is_empty() => report.bad("no replica of the operator leads", &remedy),
        Some(seconds) if seconds > i64::from(promised) => {
            report.bad(&format!("{holder} leads and has not been heard of for {seconds} s"), &remedy);
        }
        _ => report.good(&format!("{holder} leads")),
    }
    Ok(())
}

async fn objects<T>(api: Api<T>) -> anyhow::Result<Vec<Value>>
where
    T: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let all = api.list(&ListParams::default()).await?;
    Ok(all.items.iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
}

/// By their conditions: the operator's own `check` wrote them.
fn providers(all: &[Value], report: &mut Report) {
    for provider in all {
        let name = text(provider, "/metadata/name");
        let (status, reason) = ready(provider);
        if status == "True" && reason == "Ready" {
            report.good(&format!("provider {name}: ready"));
        } else {
            report.object(&format!("provider {name}"), provider, &format!("kubectl describe pxp {name}"));
        }
    }
    if all.is_empty() {
        report.note("there is no Provider");
    }
}
