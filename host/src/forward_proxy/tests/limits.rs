//! Deadlines, the bound on connections, and the end.

use super::*;

const SHORT: Duration = Duration::from_millis(50);

fn mk_deadlines(change: impl FnOnce(&mut Deadlines)) -> Deadlines {
    let mut deadlines = Deadlines::default();
    change(&mut deadlines);
    deadlines
}

#[tokio::test]
async fn a_client_that_says_nothing_is_hung_up_on() {
    for protocol in [Protocol::Http, Protocol::Socks5] {
        let deadlines = mk_deadlines(|deadlines| deadlines.handshake = SHORT);
        let proxy = mk_proxy(Options { deadlines, ..Options::new(protocol) }).await;
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        assert_closes(&mut stream).await;
        let mut halfway = TcpStream::connect(proxy.address).await.unwrap();
        let begun: &[u8] = if protocol == Protocol::Http { b"GET http://a/ HTTP/1.1\r\nHo" } else { &[5, 1] };
        halfway.write_all(begun).await.unwrap();
        assert_closes(&mut halfway).await;
    }
}

#[tokio::test]
async fn the_deadline_of_the_handshake_ends_with_it() {
    let (origin, echo) = (mk_origin().await, mk_echo().await);
    for protocol in [Protocol::Http, Protocol::Socks5] {
        let deadlines = mk_deadlines(|deadlines| {
            deadlines.handshake = SHORT;
            deadlines.answer = SHORT * 4;
        });
        let options = Options { deadlines, ..mk_options(protocol, &[origin, echo]) };
        let proxy = mk_proxy(options).await;
        let mut tunnel = match protocol {
            Protocol::Http => connect_tunnel(proxy.address, echo).await,
            Protocol::Socks5 => {
                let (host, config) = ("127.0.0.1".to_owned(), Default::default());
                let (proxy, port) = (proxy.address, echo.port());
                let client = fast_socks5::client::Socks5Stream::connect(proxy, host, port, config);
                client.await.unwrap().get_socket()
            }
        };
        // A client that came later and says nothing tells when the deadline has passed.
        let mut later = TcpStream::connect(proxy.address).await.unwrap();
        assert_closes(&mut later).await;
        assert_echoes(&mut tunnel).await;
        if protocol == Protocol::Http {
            let request = format!("GET http://{origin}/silent HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            let answer = exchange(proxy.address, &request).await;
            assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_silent_tunnel_is_closed() {
    let echo = mk_echo().await;
    let deadlines = mk_deadlines(|deadlines| deadlines.idle = SHORT);
    let proxy = mk_proxy(Options { deadlines, ..mk_options(Protocol::Http, &[echo]) }).await;
    let mut tunnel = connect_tunnel(proxy.address, echo).await;
    assert_closes(&mut tunnel).await;
}

#[tokio::test]
async fn a_target_that_does_not_answer_is_a_gateway_timeout() {
    let origin = mk_origin().await;
    let deadlines = mk_deadlines(|deadlines| deadlines.answer = SHORT);
    let proxy = mk_proxy(Options { deadlines, ..mk_options(Protocol::Http, &[origin]) }).await;
    let request = format!("GET http://{origin}/silent HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = exchange(proxy.address, &request).await;
    assert!(answer.starts_with("HTTP/1.1 504 ") && answer.contains("http_response_timeout"), "{answer}");
}

#[tokio::test]
async fn a_target_that_takes_no_connection_is_a_gateway_timeout() {
    // Nobody accepts, and once the backlog is full the kernel leaves newcomers without an answer.
    let full = tokio::net::TcpSocket::new_v4().unwrap();
    full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = full.listen(1).unwrap();
    let target = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) = timeout(SHORT * 4, TcpStream::connect(target)).await {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the backlog never fills");
    }
    let deadlines = mk_deadlines(|deadlines| deadlines.connect = SHORT);
    let proxy = mk_proxy(Options { deadlines, ..mk_options(Protocol::Http, &[target]) }).await;
    let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = exchange(proxy.address, &request).await;
    assert!(answer.starts_with("HTTP/1.1 504 ") && answer.contains("connection_timeout"), "{answer}");
}

#[tokio::test]
async fn clients_over_the_limit_are_hung_up_on_until_one_leaves() {
    let echo = mk_echo().await;
    let max_connections = NonZeroUsize::new(1).unwrap();
    let proxy = mk_proxy(Options { max_connections, ..mk_options(Protocol::Http, &[echo]) }).await;
    let first = connect_tunnel(proxy.address, echo).await;
    let mut second = TcpStream::connect(proxy.address).await.unwrap();
    assert_closes(&mut second).await;
    drop(first);
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let served = async {
        loop {
            let mut stream = TcpStream::connect(proxy.address).await.unwrap();
            let _ = stream.write_all(request.as_bytes()).await;
            if read_all(&mut stream).await.starts_with("HTTP/1.1 400 ") {
                return;
            }
        }
    };
    timeout(PATIENCE, served).await.expect("a place becomes free");
}

#[tokio::test]
async fn a_shutdown_hangs_up_on_everybody_and_closes_the_port() {
    let (origin, echo) = (mk_origin().await, mk_echo().await);
    let proxy = mk_proxy(mk_options(Protocol::Http, &[origin, echo])).await;
    let mut tunnel = connect_tunnel(proxy.address, echo).await;
    assert_echoes(&mut tunnel).await;
    let mut waiting = TcpStream::connect(proxy.address).await.unwrap();
    let request = format!("GET http://{origin}/silent HTTP/1.1\r\nHost: a\r\n\r\n");
    waiting.write_all(request.as_bytes()).await.unwrap();
    let mut resting = TcpStream::connect(proxy.address).await.unwrap();

    proxy.shutdown.cancel();
    timeout(PATIENCE, proxy.task).await.expect("a prompt end").unwrap();
    for stream in [&mut tunnel, &mut waiting, &mut resting] {
        assert_closes(stream).await;
    }
    assert!(TcpStream::connect(proxy.address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn a_client_that_leaves_takes_the_targets_connection_along() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = target.local_addr().unwrap();
    let proxy = mk_proxy(mk_options(Protocol::Http, &[address])).await;
    let mut client = TcpStream::connect(proxy.address).await.unwrap();
    let request = format!("GET http://{address}/ HTTP/1.1\r\nHost: a\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let (mut accepted, _) = timeout(PATIENCE, target.accept()).await.expect("a connection").unwrap();
    drop(client);
    assert_closes(&mut accepted).await;
}

#[tokio::test]
async fn dropping_the_future_hangs_up_too() {
    let echo = mk_echo().await;
    let proxy = mk_proxy(mk_options(Protocol::Socks5, &[echo])).await;
    let mut client = TcpStream::connect(proxy.address).await.unwrap();
    client.write_all(&[5, 1, 0]).await.unwrap();
    let mut chosen = [0; 2];
    timeout(PATIENCE, client.read_exact(&mut chosen)).await.expect("a reply").unwrap();
    proxy.task.abort();
    assert_closes(&mut client).await;
}
