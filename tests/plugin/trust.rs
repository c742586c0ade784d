//! Which certificates are trusted: the public ones, or those of the connection's own authority.

use std::net::SocketAddr;
use std::sync::Arc;

use proxy_operator::model::error::ErrorKind;
use proxy_operator::plugin::grants::Grants;
use proxy_operator_tests::plugins::{Setup, identity, soon};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// An HTTPS server whose certificate an authority of its own has signed, in PEM.
struct Secure {
    address: SocketAddr,
    ca: String,
    _serving: AbortOnDropHandle<()>,
}

async fn secure() -> Secure {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ca_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec![]).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).expect("an authority").pem();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.der().clone()], key).expect("a configuration");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let serving = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(mut client) = acceptor.accept(client).await else { continue };
            let _ = client.read(&mut [0; 4096]).await;
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
            let _ = client.shutdown().await;
        }
    });
    Secure { address, ca, _serving: AbortOnDropHandle::new(serving) }
}

fn to(server: &Secure, ca: Option<&str>) -> Setup {
    let mut http = json!({"baseUrl": format!("https://{}", server.address), "permit": ["loopback"]});
    let setup = Setup::new();
    if let Some(ca) = ca {
        http["ca"] = json!({"secretRef": {"name": "ca", "key": "value"}});
        setup.vault.set("ca", ca);
    }
    setup.connection("cloud", json!({"http": http})).config(json!({"http": {"method": "PUT"}}))
}

#[tokio::test]
async fn an_authority_of_its_own_is_trusted_instead_of_the_public_ones() {
    let (server, other) = (secure().await, secure().await);
    let handle = to(&server, Some(&server.ca)).handle("fetch").await;
    soon("a request", handle.get(&identity("a", "here"))).await.expect("it is trusted");
    for ca in [None, Some(other.ca.as_str())] {
        let handle = to(&server, ca).handle("fetch").await;
        let error = soon("a request", handle.get(&identity("a", "here"))).await.expect_err("it is not trusted");
        // Nothing was sent, so the outcome of a change is known.
        assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Unauthorized, "TlsFailed"), "{error}");
    }
}

#[tokio::test]
async fn a_rotated_authority_is_trusted_by_the_next_request() {
    let (server, other) = (secure().await, secure().await);
    let setup = to(&server, Some(&other.ca));
    let vault = setup.vault.clone();
    let handle = setup.handle("fetch").await;
    handle.get(&identity("a", "here")).await.expect_err("it is not trusted");
    vault.set("ca", &format!("{}{}", other.ca, server.ca));
    soon("a request", handle.get(&identity("a", "here"))).await.expect("one of two is trusted");
    vault.set("ca", &other.ca);
    handle.get(&identity("a", "here")).await.expect_err("the old connection is not used either");
}

#[tokio::test]
async fn what_is_no_certificate_is_told_before_a_plugin_is_called() {
    let server = secure().await;
    for ca in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let setup = to(&server, Some(ca));
        let grants = Grants::new(&setup.spec(), Arc::new(setup.vault.clone())).expect("a good connection");
        let error = grants.probe().await.expect_err("no certificate").to_string();
        assert!(error.contains("http.ca") && error.contains("Secret ca"), "{error}");
    }
}
