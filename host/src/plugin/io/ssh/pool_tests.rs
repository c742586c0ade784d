//! A connection with a server in this process, so that time can be turned forward.

use russh::Channel;
use russh::keys::{Algorithm, PrivateKey, ssh_key::LineEnding};
use russh::server::{self, Auth, ChannelOpenHandle, Config, Handler, Msg, Session, VerifiedPublicKey};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional, duplex};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::super::connection::{CHANNELS, KEEPALIVE, KEEPALIVES, REGAIN};
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
async fn mk_server() -> (Arc<Account>, Material, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let (account, material, config) = mk_account(port);
    let serving = tokio::spawn(async move {
        let (client, _) = listener.accept().await.expect("a client");
        serve(config, client).await;
    });
    (account, material, serving)
}

async fn serve(config: Arc<Config>, client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let session = server::run_stream(config, client, Everybody).await.expect("a handshake");
    let _ = session.await;
}

/// An account at this port, and what its server is made with.
fn mk_account(port: u16) -> (Arc<Account>, Material, Arc<Config>) {
    let (host_key, client_key) = (mk_key(), mk_key());
    let known_hosts = format!("[127.0.0.1]:{port} {}", host_key.public_key().to_openssh().expect("a public key"));
    let config = Arc::new(Config { keys: vec![host_key], ..Config::default() });
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
    (Arc::new(account), Material { key, known_hosts, digest: [0; 32] }, config)
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
    for _ in 0..CHANNELS {
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

/// A server refuses also while it still clears up channels that were closed just now.
#[tokio::test]
async fn a_place_that_was_refused_is_tried_again_after_a_while() {
    let (account, material, _serving) = mk_server().await;
    let mut all = vec![];
    for _ in 0..CHANNELS / 2 {
        slot(&account, &material).await.shrink();
    }
    for _ in 0..CHANNELS / 2 {
        all.push(slot(&account, &material).await);
    }
    tokio::time::pause();
    let before = Instant::now();
    for _ in 0..CHANNELS / 2 {
        all.push(slot(&account, &material).await);
    }
    let waited = before.elapsed();
    assert!(waited >= REGAIN * (CHANNELS / 2 - 1) as u32 && waited <= REGAIN * (CHANNELS / 2 + 1) as u32, "{waited:?}");
    let until = Instant::now() + REGAIN * 3;
    let fault = account.pool.slot(&account, &material, until).await.err().expect("no more than there were");
    assert_eq!(fault.kind, FaultKind::Busy, "{}", fault.message);
}

/// The other side's machine was switched off, or a firewall forgot the connection: it stays open, and nothing comes back.
#[tokio::test]
async fn a_server_that_went_silent_is_noticed_by_keep_alives_and_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (account, material, config) = mk_account(listener.local_addr().expect("its address").port());
    let silence = Arc::new(Notify::new());
    let silenced = silence.clone();
    let _relaying = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("a client");
            let (mut near, far) = duplex(64 << 10);
            tokio::spawn(serve(config.clone(), far));
            let silenced = silenced.clone();
            tokio::spawn(async move {
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut near) => {}
                    () = silenced.notified() => std::future::pending().await,
                }
            });
        }
    }));
    let first = slot(&account, &material).await;
    assert!(first.connection.is_alive());
    silence.notify_waiters();
    tokio::time::pause();
    // One question after the other: each waits until the one before was not answered.
    for _ in 0..=KEEPALIVES {
        tokio::time::advance(KEEPALIVE).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
    let lost = &first.connection.lost;
    tokio::time::timeout(Duration::from_secs(30), lost.token.cancelled()).await.expect("it is noticed");
    assert_eq!(lost.why(), "the server answers no more");
    let second = slot(&account, &material).await;
    assert!(!Arc::ptr_eq(&first.connection, &second.connection) && second.connection.is_alive());
}
