//! A connection with a server in this process, so that time can be turned forward.

use russh::Channel;
use russh::keys::{Algorithm, PrivateKey, ssh_key::LineEnding};
use russh::server::{self, Auth, ChannelOpenHandle, Config, Handler, Msg, Session, VerifiedPublicKey};
use tokio::net::TcpListener;

use super::super::key::ClientKey;
use super::*;
use crate::model::provider::{Permit, Source, SshConnection};

/// Lets everybody in, and opens any channel.
struct Everybody;

impl Handler for Everybody {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        _: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        Ok(())
    }
}

fn mk_key() -> PrivateKey {
    PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).expect("a key")
}

/// A server for one client; its end is the end of the connection.
async fn mk_server() -> (Arc<Account>, Material, tokio::task::JoinHandle<()>) {
    let (host_key, client_key) = (mk_key(), mk_key());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let known_hosts = format!("[127.0.0.1]:{port} {}", host_key.public_key().to_openssh().expect("a public key"));
    let config = Arc::new(Config { keys: vec![host_key], ..Config::default() });
    let serving = tokio::spawn(async move {
        let (client, _) = listener.accept().await.expect("a client");
        let session = server::run_stream(config, client, Everybody).await.expect("a handshake");
        let _ = session.await;
    });
    let source = Source { secret_ref: None, file: Some("/key".into()) };
    let spec = SshConnection {
        host: "127.0.0.1".into(),
        port,
        user: "ops".into(),
        key: source.clone(),
        known_hosts: source,
        allow: vec![],
        permit: vec![Permit::Loopback],
    };
    let text = client_key.to_openssh(LineEnding::LF).expect("a private key").to_string();
    let key = ClientKey::parse(&text.into()).expect("a good key");
    let account = Account::new("home1", &spec).expect("a good connection");
    (Arc::new(account), Material { key, known_hosts, digest: [0; 32] }, serving)
}

async fn slot(account: &Arc<Account>, material: &Material) -> Slot {
    let until = Instant::now() + Duration::from_secs(30);
    account.pool.slot(account, material, until).await.unwrap_or_else(|fault| panic!("{}", fault.message))
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed_and_one_in_use_is_not() {
    let (account, material, serving) = mk_server().await;
    let used = slot(&account, &material).await;
    tokio::time::pause();
    tokio::time::advance(IDLE + Duration::from_secs(1)).await;
    tokio::time::resume();
    // The same one: the server takes no second client.
    let again = slot(&account, &material).await;
    assert!(Arc::ptr_eq(&used.connection, &again.connection));
    assert!(!serving.is_finished());
    drop((used, again));
    tokio::time::pause();
    tokio::time::advance(IDLE + Duration::from_secs(2)).await;
    tokio::time::resume();
    tokio::time::timeout(Duration::from_secs(30), serving).await.expect("it is closed").expect("no panic");
}

#[tokio::test]
async fn without_a_free_place_in_time_it_is_busy() {
    let (account, material, _serving) = mk_server().await;
    let mut all = vec![];
    for _ in 0..super::super::connection::CHANNELS {
        all.push(slot(&account, &material).await);
    }
    let until = Instant::now() + Duration::from_millis(100);
    let fault = account.pool.slot(&account, &material, until).await.err().expect("there is no place");
    assert_eq!((fault.kind, fault.sent), (FaultKind::Busy, false), "{}", fault.message);
    all.pop();
    drop(slot(&account, &material).await);
}

#[tokio::test]
async fn a_connection_never_shrinks_to_nothing() {
    let (account, material, _serving) = mk_server().await;
    for _ in 0..20 {
        slot(&account, &material).await.shrink();
    }
    let last = slot(&account, &material).await;
    assert_eq!(last.connection.slots.available_permits(), 0);
    assert!(last.connection.busy());
}
