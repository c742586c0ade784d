//! The list of instances that were given up: a ConfigMap of the operator's namespace, one key each.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use super::store_error;
use crate::model::abandoned::{ABANDONED, Abandoned};
use crate::store::{StoreError, too_many_abandoned};

const NAME: &str = "proxy-operator-abandoned";

pub(super) struct List {
    api: Api<ConfigMap>,
}

impl List {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }

    pub async fn all(&self) -> Result<Vec<Abandoned>, StoreError> {
        let found = self.api.get_opt(NAME).await.map_err(|e| store_error(NAME, e))?;
        let data = found.and_then(|list| list.data).unwrap_or_default();
        let parse = |(key, text): (String, String)| {
            serde_json::from_str(&text).map_err(|e| {
                StoreError::Unavailable(format!(
                    "key {key} of ConfigMap {NAME} cannot be read ({e}): correct it or remove it"
                ))
            })
        };
        data.into_iter().map(parse).collect()
    }

    /// Each is a key of its own, so that two writers lose nothing of each other.
    pub async fn add(&self, given_up: Vec<Abandoned>) -> Result<(), StoreError> {
        if self.all().await?.len() + given_up.len() > ABANDONED {
            return Err(too_many_abandoned());
        }
        let mut data = BTreeMap::new();
        for one in given_up {
            let text = serde_json::to_string(&one).map_err(|e| StoreError::Unavailable(e.to_string()))?;
            data.insert(one.key(), text);
        }
        let patch = Patch::Merge(json!({"data": data}));
        match self.api.patch(NAME, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let metadata = ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() };
                let list = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
                self.api.create(&PostParams::default(), &list).await.map(drop)
            }
            patched => patched.map(drop),
        }
        .map_err(|e| store_error(NAME, e))
    }

    pub async fn forget(&self, key: &str) -> Result<bool, StoreError> {
        if !self.all().await?.iter().any(|one| one.key() == key) {
            return Ok(false);
        }
        let patch = Patch::Merge(json!({"data": {key: null}}));
        self.api.patch(NAME, &PatchParams::default(), &patch).await.map_err(|e| store_error(NAME, e))?;
        Ok(true)
    }
}
