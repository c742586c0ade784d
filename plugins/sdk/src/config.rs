//! Reading config and parameters. The host has checked them against the schema; what it cannot check, and a schema that
//! says less than the type, ends here with a pointer.

use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};

use crate::Invalid;

/// Reads `Provider.spec.config`. Pointers begin with `/config`.
pub fn parse_config<T: DeserializeOwned>(json: &str) -> Result<T, Invalid> {
    parse("/config", json)
}

/// Reads `Proxy.spec.parameters`. Pointers begin with `/parameters`.
pub fn parse_parameters<T: DeserializeOwned>(json: &str) -> Result<T, Invalid> {
    parse("/parameters", json)
}

fn parse<T: DeserializeOwned>(root: &str, json: &str) -> Result<T, Invalid> {
    // What was left out arrives as an empty text from a caller that does not fill in `{}`.
    let json = if json.trim().is_empty() { "{}" } else { json };
    let mut reader = serde_json::Deserializer::from_str(json);
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| Invalid::field(pointer(root, error.path()), error.inner().to_string()))?;
    reader.end().map_err(|error| Invalid::field(root, error.to_string()))?;
    Ok(value)
}

/// RFC 6901.
fn pointer(root: &str, path: &Path) -> String {
    let mut pointer = root.to_owned();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => pointer += &format!("/{index}"),
            Segment::Map { key } => pointer += &format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            // A variant is no level in the JSON that the author wrote, and what follows an unknown one cannot be named.
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        #[allow(dead_code)]
        hosts: Vec<BTreeMap<String, u16>>,
    }

    fn refused(json: &str) -> String {
        parse_config::<Config>(json).unwrap_err().errors[0].pointer.clone()
    }

    #[test]
    fn a_wrong_value_is_pointed_at() {
        assert_eq!(refused(r#"{"hosts":[{"ok":1},{"a/b~c":70000}]}"#), "/config/hosts/1/a~1b~0c");
        assert_eq!(refused(r#"{"hosts":1}"#), "/config/hosts");
        assert_eq!(refused(r#"{"hosts":[],"host":1}"#), "/config/host");
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = parse_config::<Config>("").unwrap_err();
        assert_eq!(error.errors[0].pointer, "/config");
        assert!(error.errors[0].message.contains("hosts"));
    }
}
