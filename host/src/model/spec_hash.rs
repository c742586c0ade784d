//! Hash of what shapes an instance. A different hash means a rebuild; a hash of an unknown version is restamped.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::proxy::{AuthMode, ProxySpec, SpecHash};

/// Version of the rule below. A change of the rule is a new version, so that an upgrade rebuilds nothing.
pub const VERSION: u32 = 1;
/// The applied field with the digest of a login.
pub const APPLIED_LOGIN: &str = "login";

/// The defaulted fields that shape the instance. What only steers the operator (probing, draining, ages, pauses) stays
/// out, and so does the provider's catalogue: editing it never rebuilds what runs. `login`: digest of the login that a
/// Secret gives ([`LoginKey::digest`](super::login::LoginKey::digest)).
pub fn shaping_fields(spec: &ProxySpec, login: Option<&str>) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            fields.insert(name.into(), value);
        }
    };
    put("image", json!(spec.image));
    put("size", json!(spec.size));
    put("location", json!(spec.location));
    put("parameters", sorted(&Value::Object(spec.parameters.clone())));
    put("protocol", json!(spec.protocol.as_str()));
    put("port", json!(spec.port));
    put(
        "auth",
        json!(match spec.auth.mode {
            AuthMode::Generated => "generated",
            AuthMode::Secret => "secret",
            AuthMode::None => "none",
        }),
    );
    put(APPLIED_LOGIN, json!(login));
    if !spec.rebuild_token.is_empty() {
        put("rebuildToken", json!(spec.rebuild_token));
    }
    fields
}

/// The hash of a defaulted spec and the digest of its login.
pub fn spec_hash(spec: &ProxySpec, login: Option<&str>) -> SpecHash {
    let text = Value::Object(shaping_fields(spec, login)).to_string();
    let digest = Sha256::digest(text.as_bytes());
    SpecHash { version: VERSION, hash: hex(&digest[..16]) }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        use std::fmt::Write;
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The same JSON with the keys of every object in order, whatever map serde_json was built with.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort();
            Value::Object(keys.into_iter().map(|key| (key.clone(), sorted(&map[key]))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::span::Span;

    #[test]
    fn what_shapes_the_instance_changes_the_hash_and_nothing_else_does() {
        let base = ProxySpec::of_provider("p");
        let hash = |edit: fn(&mut ProxySpec)| {
            let mut spec = base.clone();
            edit(&mut spec);
            spec_hash(&spec, None).hash
        };
        let same = spec_hash(&base, None).hash;
        for edit in [
            |s: &mut ProxySpec| s.paused = true,
            |s| s.unschedulable = true,
            |s| s.max_age = Some(Span::secs(60)),
            |s| s.drain_timeout = Span::secs(1),
            |s| s.health_check.fail_after = 9,
        ] as [fn(&mut ProxySpec); 5]
        {
            assert_eq!(hash(edit), same);
        }
        for edit in [
            |s: &mut ProxySpec| s.image = Some("debian12".into()),
            |s| s.port = 8080,
            |s| s.rebuild_token = "now".into(),
            |s| s.auth.mode = AuthMode::None,
            |s| s.parameters = Map::from_iter([("a".into(), json!(1))]),
        ] as [fn(&mut ProxySpec); 5]
        {
            assert_ne!(hash(edit), same);
        }
        assert_ne!(spec_hash(&base, Some("k1:0")).hash, same);
    }

    /// A changed rule without a new version would rebuild every fleet on upgrade (kubernetes-sigs/karpenter#957).
    #[test]
    fn version_1_is_pinned() {
        assert_eq!(
            (VERSION, spec_hash(&ProxySpec::of_provider("p"), None).hash.as_str()),
            (1, "970a7832fc6a89f99a7e6872b70590fb")
        );
    }
}
