//! One installation per cluster: it claims the cluster with an annotation on the CRD of Proxies, which its replicas share.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::store_error;
use crate::store::StoreError;

const CRD: &str = "proxies.crawl.example.com";
const ANNOTATION: &str = "crawl.example.com/installation";
/// Somebody else may write the CRD meanwhile, or an API server that starts leave the first request without an answer: then
/// it is looked at again, so often.
const TRIES: usize = 5;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Claims the cluster for the installation in `namespace`.
///
/// # Errors
/// When another installation has it, or the CRDs are missing.
pub(super) async fn claim(client: &Client, namespace: &str) -> Result<(), StoreError> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for _ in 0..TRIES {
        let Ok(found) = tokio::time::timeout(PATIENCE, crds.get_opt(CRD)).await else {
            tracing::warn!("the API server did not answer within {PATIENCE:?}; it is asked again");
            continue;
        };
        let found = found.map_err(|e| store_error(CRD, e))?;
        let crd = found.ok_or_else(|| {
            StoreError::Unavailable(format!(
                "CRD {CRD} is missing: proxy-operator crd | kubectl apply --server-side -f -"
            ))
        })?;
        match crd.annotations().get(ANNOTATION) {
            Some(ours) if ours == namespace => return Ok(()),
            Some(other) if exists(client, other).await? => {
                return Err(StoreError::Taken(format!(
                    "the operator in namespace {other} serves this cluster (annotation {ANNOTATION} of CRD {CRD}), and one \
                     cluster has one installation: start this one with --namespace {other}, or delete that namespace first"
                )));
            }
            _ => {}
        }
        let metadata = json!({"resourceVersion": crd.resource_version(), "annotations": {ANNOTATION: namespace}});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match crds.patch(CRD, &PatchParams::default(), &patch).await.map_err(|e| store_error(CRD, e)) {
            Err(StoreError::Conflict(_)) => {}
            patched => return patched.map(drop),
        }
    }
    Err(StoreError::Unavailable(format!("CRD {CRD} could not be claimed in {TRIES} tries")))
}

async fn exists(client: &Client, namespace: &str) -> Result<bool, StoreError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    Ok(namespaces.get_opt(namespace).await.map_err(|e| store_error(namespace, e))?.is_some())
}
