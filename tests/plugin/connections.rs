//! The examples of `docs/connections.md` are connections that can be granted, and its tables are complete.

use std::sync::Arc;

use async_trait::async_trait;
use proxy_operator::model::manifest::{Manifest, parse};
use proxy_operator::model::provider::Source;
use proxy_operator::model::secret::SecretBytes;
use proxy_operator::plugin::grants::{ApiServer, Cluster, Grants, SecretError, Secrets, Token, TokenError};
use proxy_operator_tests::{examples, root};

/// An operator in a cluster, which has no Secret.
struct InCluster(ApiServer);

#[async_trait]
impl Secrets for InCluster {
    async fn resolve(&self, source: &Source) -> Result<SecretBytes, SecretError> {
        Err(SecretError::Missing(source.to_string()))
    }

    fn cluster(&self) -> Option<&dyn Cluster> {
        Some(self)
    }
}

#[async_trait]
impl Cluster for InCluster {
    fn api_server(&self) -> &ApiServer {
        &self.0
    }

    async fn token(&self, name: &str) -> Result<Token, TokenError> {
        Err(TokenError::Refused(name.into()))
    }
}

#[tokio::test]
async fn the_examples_are_connections_that_can_be_granted() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    for example in examples("connections.md") {
        for manifest in parse(&example).unwrap_or_else(|e| panic!("{e}:\n{example}")) {
            let Manifest::Provider(provider) = manifest else { panic!("no Provider:\n{example}") };
            let server = ApiServer { url: "https://10.96.0.1".into(), ..ApiServer::default() };
            Grants::new(&provider.spec, Arc::new(InCluster(server))).unwrap_or_else(|e| panic!("{e}:\n{example}"));
        }
    }
}

#[test]
fn every_fault_that_a_connection_can_have_is_in_the_table() {
    let page = std::fs::read_to_string(root().join("docs/connections.md")).expect("the page");
    let wit = std::fs::read_to_string(root().join("wit/provider.wit")).expect("the contract");
    let kinds = wit.split("enum fault-kind {").nth(1).and_then(|rest| rest.split('}').next()).expect("the enum");
    for kind in
        kinds.lines().map(|line| line.trim().trim_end_matches(',')).filter(|l| !l.is_empty() && !l.starts_with('/'))
    {
        assert!(page.contains(&format!("| `{kind}` |")), "docs/connections.md has no row for {kind}");
    }
}
