//! Which headers end at this hop.

use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, TRANSFER_ENCODING};

/// The fields that speak to the next hop only, beside those that `Connection` names (RFC 9110 §7.6.1) and `Proxy-…`.
/// `Trailer` and `TE` are among them because trailers are not passed on.
const HOP_BY_HOP: [&str; 6] = ["connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Takes out of a request or an answer what is not for the other side: hop-by-hop fields, all that `Connection` lists, and
/// everything that begins with `Proxy-`, credentials above all.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // A length beside a transfer coding is void (RFC 9112 §6.3); passed on alone it would let a second request hide in a body.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let listed: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let ends_here = |name: &HeaderName| {
        let name = name.as_str();
        HOP_BY_HOP.contains(&name)
            || name.starts_with("proxy-")
            // A client that lists Host or the length would break the request for the target, so those stay.
            || (!matches!(name, "host" | "content-length") && listed.iter().any(|other| other == name))
    };
    let doomed: Vec<HeaderName> = headers.keys().filter(|name| ends_here(name)).cloned().collect();
    for name in doomed {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_speaks_to_this_hop_is_taken_out_and_the_rest_stays() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Listed"),
            ("connection", "x-too,host,content-length"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("proxy-status", "other; error=x"),
            ("te", "trailers"),
            ("trailer", "x-sum"),
            ("upgrade", "websocket"),
            ("x-listed", "1"),
            ("x-too", "2"),
            ("host", "a"),
            ("content-length", "3"),
            ("authorization", "Bearer stays"),
            ("cookie", "a=1"),
            ("x-proxy", "stays"),
        ] {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        strip_hop_by_hop(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "content-length", "cookie", "host", "x-proxy"]);
    }

    #[test]
    fn a_length_beside_a_transfer_coding_goes_with_it() {
        let mut headers = HeaderMap::new();
        headers.insert(TRANSFER_ENCODING, "chunked".parse().unwrap());
        headers.insert(CONTENT_LENGTH, "3".parse().unwrap());
        strip_hop_by_hop(&mut headers);
        assert!(headers.is_empty());
    }
}
