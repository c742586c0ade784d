//! Requests in absolute form and CONNECT.

use super::*;

#[tokio::test]
async fn a_request_is_forwarded_with_its_headers_and_without_those_for_the_proxy() {
    let origin = mk_origin().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[origin])).await;
    let answer = exchange(
        proxy.address,
        &format!(
            "GET http://user:word@{origin}/page?q=1 HTTP/1.1\r\nHost: another.example\r\nX-Mine: yes\r\n\
             Accept: a\r\nAccept: b\r\nProxy-Connection: close\r\nProxy-Authorization: Basic eDp5\r\nTE: trailers\r\n\
             Upgrade: websocket\r\nX-Listed: 1\r\nConnection: close, x-listed\r\n\r\n"
        ),
    )
    .await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let expected = format!("GET /page?q=1\naccept: a\naccept: b\nhost: {origin}\nx-mine: yes");
    assert_eq!(body, expected);
}

#[tokio::test]
async fn every_method_passes_with_its_body() {
    let origin = mk_origin().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[origin])).await;
    for method in ["GET", "DELETE", "OPTIONS", "PROPFIND"] {
        let request = format!("{method} http://{origin}/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(proxy.address, &request).await;
        assert!(answer.contains(&format!("\r\n\r\n{method} /x\n")), "{answer}");
    }
    for method in ["POST", "PUT", "PATCH"] {
        let request = format!(
            "{method} http://{origin}/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
        );
        let answer = exchange(proxy.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nbody"), "{answer}");
    }
    let request = format!("HEAD http://{origin}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = exchange(proxy.address, &request).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn one_connection_carries_several_requests() {
    let origin = mk_origin().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[origin])).await;
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    for _ in 0..3 {
        let request = format!("HEAD http://{origin}/ HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_is_answered_in_kind() {
    let origin = mk_origin().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[origin])).await;
    let answer = exchange(proxy.address, &format!("GET http://{origin} HTTP/1.0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.0 200 ") && answer.contains("GET /\n"), "{answer}");
}

#[tokio::test]
async fn an_answers_headers_for_one_hop_are_taken_out() {
    let origin = mk_origin().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[origin])).await;
    let request = format!("GET http://{origin}/hop HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = exchange(proxy.address, &request).await.to_ascii_lowercase();
    for gone in ["x-listed", "keep-alive", "proxy-"] {
        assert!(!answer.split_once("\r\n\r\n").unwrap().0.contains(gone), "{gone} in {answer}");
    }
    assert!(answer.contains("x-kept: 2\r\n"), "{answer}");
}

#[tokio::test]
async fn a_body_flows_both_ways_while_it_is_being_sent() {
    let origin = mk_origin().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[origin])).await;
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    let head =
        format!("POST http://{origin}/echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await.to_ascii_lowercase();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    let mut chunk = [0; 10];
    timeout(PATIENCE, stream.read_exact(&mut chunk)).await.expect("the first chunk").unwrap();
    assert_eq!(&chunk, b"5\r\nfirst\r\n");
    stream.write_all(b"6\r\nsecond\r\n0\r\n\r\n").await.unwrap();
    let mut rest = [0; 16];
    timeout(PATIENCE, stream.read_exact(&mut rest)).await.expect("the second chunk").unwrap();
    assert_eq!(&rest, b"6\r\nsecond\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_large_body_arrives_whole() {
    const SIZE: usize = 32 * 1024 * 1024;
    let origin = mk_origin().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[origin])).await;
    let (mut read, mut write) = TcpStream::connect(proxy.address).await.unwrap().into_split();
    let sent = tokio::spawn(async move {
        let head = format!(
            "POST http://{origin}/echo HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\nConnection: close\r\n\r\n"
        );
        write.write_all(head.as_bytes()).await.unwrap();
        let piece: Vec<u8> = (0..64 * 1024u32).map(|index| (index % 251) as u8).collect();
        for _ in 0..SIZE / piece.len() {
            write.write_all(&piece).await.unwrap();
        }
        write
    });
    let mut answer = Vec::new();
    timeout(PATIENCE * 3, read.read_to_end(&mut answer)).await.expect("all of it").unwrap();
    let _write = sent.await.unwrap();
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(answer.len() - body, SIZE);
    let intact = answer[body..].iter().enumerate().all(|(index, byte)| {
        let within = index % (64 * 1024);
        usize::from(*byte) == within % 251
    });
    assert!(intact, "the body was changed on the way");
}

#[tokio::test]
async fn connect_opens_a_tunnel_that_closes_half_by_half() {
    let echo = mk_echo().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[echo])).await;
    let mut tunnel = connect_tunnel(proxy.address, echo).await;
    assert_echoes(&mut tunnel).await;
    tunnel.write_all(b"last words").await.unwrap();
    tunnel.shutdown().await.unwrap();
    assert_eq!(read_all(&mut tunnel).await, "last words");
}

#[tokio::test]
async fn what_a_client_sends_behind_connect_without_waiting_is_not_lost() {
    let echo = mk_echo().await;
    let proxy = mk_proxy(mk_options(Protocol::Http, &[echo])).await;
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    let request = format!("CONNECT {echo} HTTP/1.1\r\nHost: {echo}\r\n\r\nearly");
    stream.write_all(request.as_bytes()).await.unwrap();
    read_head(&mut stream).await;
    let mut back = [0; 5];
    timeout(PATIENCE, stream.read_exact(&mut back)).await.expect("an echo").unwrap();
    assert_eq!(&back, b"early");
}

#[tokio::test]
async fn only_the_right_login_gets_through() {
    let origin = mk_origin().await;
    let options = Options { login: mk_login(), ..mk_options(Protocol::Http, &[origin]) };
    let proxy = mk_proxy(options).await;
    for (line, status) in [(RIGHT, "200"), (WRONG, "407"), ("", "407")] {
        for request in [format!("GET http://{origin}/"), format!("CONNECT {origin}")] {
            let mut stream = TcpStream::connect(proxy.address).await.unwrap();
            let request = format!("{request} HTTP/1.1\r\nHost: a\r\n{line}\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let head = read_head(&mut stream).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {head}");
            let challenged = head.to_ascii_lowercase().contains("\r\nproxy-authenticate: basic ");
            assert_eq!(challenged, status == "407", "{head}");
        }
    }
}

#[tokio::test]
async fn without_a_login_nothing_is_told_about_targets() {
    let options = Options { login: mk_login(), ..Options::new(Protocol::Http) };
    let proxy = mk_proxy(options).await;
    for request in ["GET http://10.0.0.1/", "CONNECT a:25", "GET /origin-form"] {
        let request = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(proxy.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
    }
}

#[tokio::test]
async fn refusals_and_failures_have_a_status_a_code_and_a_reason() {
    let (_reserved, closed) = mk_closed_port();
    let options = Options { connect_ports: vec![443, 25], ..mk_options(Protocol::Http, &[closed]) };
    let proxy = mk_proxy(options).await;
    let cases = [
        ("GET http://127.0.0.1/".to_owned(), 403, "destination_ip_prohibited"),
        ("GET http://localhost:9/".to_owned(), 403, "destination_ip_prohibited"),
        ("GET http://[::ffff:169.254.169.254]/".to_owned(), 403, "destination_ip_prohibited"),
        ("GET http://2130706433/".to_owned(), 403, "destination_ip_prohibited"),
        ("GET http://127.0.0.1:25/".to_owned(), 403, "http_request_denied"),
        ("CONNECT [::1]:443".to_owned(), 403, "destination_ip_prohibited"),
        ("CONNECT 169.254.169.254:443".to_owned(), 403, "destination_ip_prohibited"),
        ("CONNECT localhost:22".to_owned(), 403, "http_request_denied"),
        ("CONNECT localhost:25".to_owned(), 403, "http_request_denied"),
        (format!("CONNECT {closed}"), 502, "connection_refused"),
        (format!("GET http://{closed}/"), 502, "connection_refused"),
        ("GET http://no-such-name.invalid/".to_owned(), 502, "dns_error"),
        ("GET /page".to_owned(), 400, "http_request_error"),
        ("GET https://example.com/".to_owned(), 400, "http_request_error"),
        ("OPTIONS *".to_owned(), 400, "http_request_error"),
    ];
    for (request, status, code) in cases {
        let request = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(proxy.address, &request).await.to_ascii_lowercase();
        assert!(answer.starts_with(&format!("http/1.1 {status} ")), "{request}: {answer}");
        assert!(answer.contains(&format!("proxy-status: proxy-operator; error={code}\r\n")), "{answer}");
        assert!(answer.contains("content-type: text/plain"), "{answer}");
        assert!(!answer.ends_with("\r\n\r\n"), "no reason: {answer}");
    }
}

#[tokio::test]
async fn a_target_that_breaks_off_or_speaks_no_http_is_a_bad_gateway() {
    let echo = mk_echo().await;
    let hangs_up = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let broken = hangs_up.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = hangs_up.accept().await {
            let _ = stream.read_u8().await;
        }
    });
    let proxy = mk_proxy(mk_options(Protocol::Http, &[echo, broken])).await;
    for (target, code) in [(echo, "http_protocol_error"), (broken, "connection_terminated")] {
        let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(proxy.address, &request).await.to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 502 ") && answer.contains(code), "{answer}");
    }
}

#[tokio::test]
async fn a_wrong_proxy_answers_everything_with_its_own_page() {
    let options = Options { login: mk_login(), behaviour: Behaviour::WrongPage, ..Options::new(Protocol::Http) };
    let proxy = mk_proxy(options).await;
    for request in ["GET http://example.com/", "POST http://10.0.0.1:25/", "GET /"] {
        let request = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(proxy.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("not the page"), "{answer}");
    }
    let mut tunnel = connect_tunnel(proxy.address, "10.0.0.1:80".parse().unwrap()).await;
    tunnel.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let answer = read_all(&mut tunnel).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("not the page"), "{answer}");
}
