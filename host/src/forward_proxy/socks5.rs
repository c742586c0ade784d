//! The SOCKS5 side (RFC 1928): CONNECT, with user and password (RFC 1929) or open.
//!
//! `fast-socks5` speaks the protocol. Two of its parts are not used: its password method writes what it reads into the debug
//! log, so ours stands in its place, and its look-ups and dialling know no rules, so [`Egress`](super::egress) does those.

use std::io;
use std::sync::Arc;

use fast_socks5::server::{
    AuthMethod, AuthMethodSuccessState, NoAuthentication, Socks5ServerProtocol, SocksServerError, states,
};
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::activity::Watched;
use super::egress::{EgressError, Purpose};
use super::login::Login;
use super::target::Target;
use super::{Behaviour, Shared, tunnel, wrong_page};

/// The version of the password exchange, which is not that of SOCKS (RFC 1929 §2).
const PASSWORD_VERSION: u8 = 1;
const PASSWORD_METHOD: u8 = 2;

type Client = Watched<TcpStream>;
type Command = (Socks5ServerProtocol<Client, states::CommandRead>, Socks5Command, TargetAddr);

/// Why a handshake came to nothing. The client has had its reply, as far as the RFCs know one.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error(transparent)]
    Protocol(#[from] SocksServerError),
    #[error("the password exchange broke: {0}")]
    Password(#[from] io::Error),
    #[error("wrong user or password")]
    WrongLogin,
}

/// Speaks SOCKS5 with one client until it is done.
pub(super) async fn serve_client(stream: Client, shared: Arc<Shared>) {
    let (proto, command, address) = match timeout(shared.deadlines.handshake, handshake(stream, &shared)).await {
        Ok(Ok(command)) => command,
        Ok(Err(error)) => return tracing::debug!(%error, "SOCKS5 handshake failed"),
        Err(_) => return tracing::debug!("SOCKS5 handshake took too long"),
    };
    // A failed reply means that the client has left; in either case this connection is over.
    let _ = carry_out(proto, command, address, &shared).await;
}

async fn handshake(stream: Client, shared: &Shared) -> Result<Command, HandshakeError> {
    let start = Socks5ServerProtocol::start(stream);
    let ready = match &shared.login {
        // A wrong proxy answers whoever comes, and a client with a password offers both methods.
        _ if shared.behaviour == Behaviour::WrongPage => match start.negotiate_auth(&Any::BOTH).await? {
            AnyStarted::Open(client) => Socks5ServerProtocol::finish_auth(client),
            AnyStarted::Password(exchange) => Socks5ServerProtocol::finish_auth(exchange.settle(|_, _| true).await?),
        },
        Some(login) => {
            let exchange = start.negotiate_auth(&[Password]).await?;
            let admits = |user: &[u8], word: &[u8]| Login::admits(login, user, word);
            Socks5ServerProtocol::finish_auth(exchange.settle(admits).await?)
        }
        None => Socks5ServerProtocol::finish_auth(start.negotiate_auth(&[NoAuthentication]).await?),
    };
    Ok(ready.read_command().await?)
}

async fn carry_out(
    proto: Socks5ServerProtocol<Client, states::CommandRead>,
    command: Socks5Command,
    address: TargetAddr,
    shared: &Shared,
) -> Result<(), SocksServerError> {
    if command != Socks5Command::TCPConnect {
        return proto.reply_error(&ReplyError::CommandNotSupported).await;
    }
    if shared.behaviour == Behaviour::WrongPage {
        let nowhere = ([0, 0, 0, 0], 0).into();
        let mut client = proto.reply_success(nowhere).await?;
        wrong_page::answer(&mut client).await;
        return Ok(());
    }
    let (host, port) = address.into_string_and_port();
    let target = Target::new(&host, port);
    let mut stream = match shared.egress.connect(&target, Purpose::Socks).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%target, %error, "SOCKS5 target not reached");
            return proto.reply_error(&reply_code(&error)).await;
        }
    };
    tracing::debug!(%target, "SOCKS5 tunnel opened");
    // BND.ADDR is where the connection goes out from. Clients ignore it, but the field has to be there.
    let bound = stream.local_addr().unwrap_or_else(|_| ([0, 0, 0, 0], 0).into());
    let mut client = proto.reply_success(bound).await?;
    tunnel::relay(&mut client, &mut stream).await;
    Ok(())
}

/// How RFC 1928 §6 calls a failure.
fn reply_code(error: &EgressError) -> ReplyError {
    match error {
        EgressError::PortRefused(_) | EgressError::AddressRefused => ReplyError::ConnectionNotAllowed,
        EgressError::Unresolved => ReplyError::HostUnreachable,
        EgressError::TimedOut => ReplyError::ConnectionTimeout,
        EgressError::Unreachable(cause) => match cause.kind() {
            io::ErrorKind::ConnectionRefused => ReplyError::ConnectionRefused,
            io::ErrorKind::NetworkUnreachable => ReplyError::NetworkUnreachable,
            io::ErrorKind::HostUnreachable => ReplyError::HostUnreachable,
            io::ErrorKind::TimedOut => ReplyError::ConnectionTimeout,
            _ => ReplyError::GeneralFailure,
        },
    }
}

/// User and password, as a method to negotiate.
#[derive(Debug, Clone, Copy)]
struct Password;

impl<T> AuthMethod<T> for Password {
    type StartingState = Exchange<T>;

    fn method_id(self) -> u8 {
        PASSWORD_METHOD
    }

    fn new(self, client: T) -> Exchange<T> {
        Exchange(client)
    }
}

/// A client that is about to send user and password.
struct Exchange<T>(T);

/// A client that may go on.
struct Admitted<T>(T);

impl<T> AuthMethodSuccessState<T> for Admitted<T> {
    fn into_inner(self) -> T {
        self.0
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Exchange<T> {
    async fn settle(self, admits: impl Fn(&[u8], &[u8]) -> bool) -> Result<Admitted<T>, HandshakeError> {
        let mut client = self.0;
        let version = client.read_u8().await?;
        if version != PASSWORD_VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "unknown version").into());
        }
        let user = read_field(&mut client).await?;
        let word = read_field(&mut client).await?;
        let admitted = admits(&user, &word);
        // Any status but 0 is a refusal, and the connection closes behind it (RFC 1929 §2).
        client.write_all(&[PASSWORD_VERSION, u8::from(!admitted)]).await?;
        if admitted { Ok(Admitted(client)) } else { Err(HandshakeError::WrongLogin) }
    }
}

/// A length of one byte and as many bytes as it says.
async fn read_field(client: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = client.read_u8().await?;
    let mut field = vec![0; usize::from(length)];
    client.read_exact(&mut field).await?;
    Ok(field)
}

/// Whichever method the client offers.
#[derive(Debug, Clone, Copy)]
enum Any {
    Open,
    Password,
}

impl Any {
    const BOTH: [Any; 2] = [Any::Open, Any::Password];
}

enum AnyStarted<T> {
    Open(Admitted<T>),
    Password(Exchange<T>),
}

impl<T> AuthMethod<T> for Any {
    type StartingState = AnyStarted<T>;

    fn method_id(self) -> u8 {
        match self {
            Any::Open => 0,
            Any::Password => PASSWORD_METHOD,
        }
    }

    fn new(self, client: T) -> AnyStarted<T> {
        match self {
            Any::Open => AnyStarted::Open(Admitted(client)),
            Any::Password => AnyStarted::Password(Exchange(client)),
        }
    }
}
