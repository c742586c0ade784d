//! Complete records for an author's own unit tests; change what the case is about.

use crate::{Identity, Owner, Request};

/// An identity that no call has answered yet.
pub fn identity() -> Identity {
    Identity {
        owner: Owner {
            installation: "installation-1".into(),
            proxy_uid: "4b6f6e3c-0000-4000-8000-000000000001".into(),
            namespace: "team".into(),
            name: "proxy-1".into(),
        },
        incarnation: 0,
        attempt: 0,
        placement: String::new(),
        provider_id: None,
        backend_id: None,
        continuation: None,
        extra: vec![],
    }
}

/// An HTTP proxy on port 3128, without login and without wishes.
pub fn request() -> Request {
    Request {
        identity: identity(),
        image: None,
        size: None,
        location: None,
        parameters: "{}".into(),
        port: 3128,
        protocol: "http".into(),
        login: None,
        bootstrap: None,
        must_reach: vec![],
        spec_hash: "hash-1".into(),
        extra: vec![],
    }
}
