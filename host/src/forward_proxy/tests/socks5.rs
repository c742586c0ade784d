//! SOCKS5, spoken by the client of `fast-socks5` and, where the bytes matter, by hand.

use fast_socks5::client::{Config, Socks5Stream};
use fast_socks5::{ReplyError, SocksError};

use super::*;

type Client = Socks5Stream<TcpStream>;

async fn open(proxy: &Proxy, host: &str, port: u16) -> Result<Client, SocksError> {
    Socks5Stream::connect(proxy.address, host.to_owned(), port, Config::default()).await
}

async fn open_with(proxy: &Proxy, target: SocketAddr, user: &str, word: &str) -> Result<Client, SocksError> {
    let (host, port) = (target.ip().to_string(), target.port());
    let (user, word) = (user.to_owned(), word.to_owned());
    Socks5Stream::connect_with_password(proxy.address, host, port, user, word, Config::default()).await
}

/// Sends bytes and reads exactly as many as are expected.
async fn say(stream: &mut TcpStream, bytes: &[u8], expected: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    let mut heard = vec![0; expected.len()];
    timeout(PATIENCE, stream.read_exact(&mut heard)).await.expect("a reply").unwrap();
    assert_eq!(heard, expected);
}

#[tokio::test]
async fn a_tunnel_opens_by_address_and_by_name() {
    let echo = mk_echo().await;
    let mut options = mk_options(Protocol::Socks5, &[echo]);
    options.allow_targets.push(Target::new("localhost", echo.port()));
    let proxy = mk_proxy(options).await;
    for host in ["127.0.0.1", "localhost", "LocalHost"] {
        let mut tunnel = open(&proxy, host, echo.port()).await.unwrap();
        assert_echoes(&mut tunnel).await;
    }
}

#[tokio::test]
async fn only_the_right_login_gets_through() {
    let echo = mk_echo().await;
    let options = Options { login: mk_login(), ..mk_options(Protocol::Socks5, &[echo]) };
    let proxy = mk_proxy(options).await;
    let mut tunnel = open_with(&proxy, echo, "crawler", "pa:ss word").await.unwrap();
    assert_echoes(&mut tunnel).await;
    for (user, word) in [("crawler", "wrong"), ("somebody", "pa:ss word"), ("crawler", "pa:ss wor")] {
        assert!(open_with(&proxy, echo, user, word).await.is_err(), "{user} {word}");
    }
    assert!(open(&proxy, "127.0.0.1", echo.port()).await.is_err(), "no login");
}

#[tokio::test]
async fn refused_logins_are_told_so_as_the_rfcs_say() {
    let options = Options { login: mk_login(), ..Options::new(Protocol::Socks5) };
    let proxy = mk_proxy(options).await;

    let mut no_method = TcpStream::connect(proxy.address).await.unwrap();
    say(&mut no_method, &[5, 1, 0], &[5, 0xff]).await;
    assert_closes(&mut no_method).await;

    let mut wrong = TcpStream::connect(proxy.address).await.unwrap();
    say(&mut wrong, &[5, 2, 0, 2], &[5, 2]).await;
    say(&mut wrong, b"\x01\x07crawler\x05wrong", &[1, 1]).await;
    assert_closes(&mut wrong).await;

    let mut empty = TcpStream::connect(proxy.address).await.unwrap();
    say(&mut empty, &[5, 1, 2], &[5, 2]).await;
    say(&mut empty, &[1, 0, 0], &[1, 1]).await;
    assert_closes(&mut empty).await;
}

#[tokio::test]
async fn an_open_proxy_takes_clients_that_offer_a_login_too() {
    let echo = mk_echo().await;
    let proxy = mk_proxy(mk_options(Protocol::Socks5, &[echo])).await;
    let mut tunnel = open_with(&proxy, echo, "any", "thing").await.unwrap();
    assert_echoes(&mut tunnel).await;
}

#[tokio::test]
async fn refused_targets_are_not_allowed_by_ruleset() {
    let echo = mk_echo().await;
    let proxy = mk_proxy(Options::new(Protocol::Socks5)).await;
    for (host, port) in [
        ("127.0.0.1", 443),
        ("localhost", 80),
        ("::1", 443),
        ("::ffff:10.0.0.1", 443),
        ("64:ff9b::7f00:1", 443),
        ("169.254.169.254", 80),
        ("0x7f000001", 443),
        ("127.0.0.1", echo.port()),
        ("1.1.1.1", 22),
        ("1.1.1.1", 25),
    ] {
        let refused = open(&proxy, host, port).await.map(|_| ());
        let by_ruleset = matches!(refused, Err(SocksError::ReplyError(ReplyError::ConnectionNotAllowed)));
        assert!(by_ruleset, "{host} {port}: {refused:?}");
    }
}

#[tokio::test]
async fn other_failures_have_their_own_reply() {
    let (_reserved, closed) = mk_closed_port();
    let mut options = mk_options(Protocol::Socks5, &[closed]);
    options.connect_ports = vec![443, 25];
    let proxy = mk_proxy(options).await;
    let connect_to = |port: u16| {
        let [high, low] = port.to_be_bytes();
        vec![5, 1, 0, 1, 127, 0, 0, 1, high, low]
    };
    let mut bind = connect_to(443);
    bind[1] = 2;
    let mut udp = connect_to(443);
    udp[1] = 3;
    let mut unknown_command = connect_to(443);
    unknown_command[1] = 9;
    let unresolved = [&[5, 1, 0, 3, 20][..], b"no-such-name.invalid", &[1, 187]].concat();
    let cases = [
        (connect_to(closed.port()), 5),
        (connect_to(25), 2),
        (unresolved, 4),
        (bind, 7),
        (udp, 7),
        (unknown_command, 7),
        (vec![5, 1, 0, 9], 8),
    ];
    for (command, code) in cases {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        say(&mut stream, &[5, 1, 0], &[5, 0]).await;
        say(&mut stream, &command, &[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await;
        assert_closes(&mut stream).await;
    }
}

#[tokio::test]
async fn a_wrong_proxy_answers_whoever_comes() {
    let options = Options { login: mk_login(), behaviour: Behaviour::WrongPage, ..Options::new(Protocol::Socks5) };
    let proxy = mk_proxy(options).await;
    let target = "10.0.0.1:80".parse().unwrap();
    for client in [open(&proxy, "10.0.0.1", 80).await, open_with(&proxy, target, "x", "y").await] {
        let mut stream = client.unwrap().get_socket();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let answer = read_all(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("not the page"), "{answer}");
    }
}

#[tokio::test]
async fn what_is_not_socks5_is_hung_up_on() {
    let proxy = mk_proxy(Options::new(Protocol::Socks5)).await;
    for hello in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[4, 1, 0, 80, 1, 1, 1, 1, 0], &[5, 0]] {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        stream.write_all(hello).await.unwrap();
        assert_closes(&mut stream).await;
    }
}
