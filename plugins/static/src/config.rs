//! The list of proxies, and what its schema cannot say.

use std::collections::BTreeSet;

use crawl_provider_sdk::{FieldError, Invalid, Reach, parse_config};
use serde::Deserialize;

pub const CONFIG_SCHEMA: &str = include_str!("config.schema.json");
pub const PARAMETERS_SCHEMA: &str = include_str!("parameters.schema.json");

/// `Provider.spec.config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub proxies: Vec<Entry>,
}

/// One proxy.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub host: String,
    pub port: u16,
    #[serde(default)]
    pub protocol: Protocol,
    pub location: Option<String>,
    #[serde(default)]
    reach: ReachedFrom,
    pub login_secret: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    #[default]
    Http,
    Socks5,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReachedFrom {
    Internal,
    #[default]
    External,
}

impl Config {
    pub fn read(config: &str) -> Result<Self, Invalid> {
        let config: Self = parse_config(config)?;
        let mut seen = BTreeSet::new();
        let again = |(index, entry): (usize, &Entry)| {
            FieldError::new(
                format!("/config/proxies/{index}/name"),
                format!("{} is the name of an entry before; names are unique", entry.name),
            )
        };
        let doubles = config.proxies.iter().enumerate().filter(|(_, entry)| !seen.insert(&entry.name));
        Invalid::unless_empty(doubles.map(again).collect())?;
        Ok(config)
    }
}

impl Entry {
    /// The name alone would follow an entry that was edited to another machine.
    pub fn placement(&self) -> String {
        // An IPv6 address is told apart from its port by brackets, as in a URL.
        match self.host.contains(':') {
            true => format!("{}@[{}]:{}", self.name, self.host, self.port),
            false => format!("{}@{}:{}", self.name, self.host, self.port),
        }
    }

    pub fn reach(&self) -> Reach {
        match self.reach {
            ReachedFrom::Internal => Reach::Internal,
            ReachedFrom::External => Reach::External,
        }
    }
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Socks5 => "socks5",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn schemas_describe_what_is_read() {
        let schema: Value = serde_json::from_str(CONFIG_SCHEMA).unwrap();
        let entry = &schema["properties"]["proxies"]["items"];
        assert_eq!(entry["additionalProperties"], false);
        let properties = entry["properties"].as_object().unwrap();
        let names = ["host", "location", "loginSecret", "name", "port", "protocol", "reach"];
        assert_eq!(properties.keys().collect::<Vec<_>>(), names);
        assert!(properties.values().all(|property| property["description"].is_string()));
        let parameters: Value = serde_json::from_str(PARAMETERS_SCHEMA).unwrap();
        assert!(parameters["properties"]["entry"]["description"].is_string());
    }

    #[test]
    fn a_name_given_twice_is_pointed_at() {
        let invalid = Config::read(
            r#"{"proxies":[{"name":"a","host":"h","port":1},{"name":"b","host":"h","port":1},{"name":"a","host":"i","port":1}]}"#,
        )
        .unwrap_err();
        assert_eq!(invalid.errors.len(), 1);
        assert_eq!(invalid.errors[0].pointer, "/config/proxies/2/name");
    }

    #[test]
    fn a_placement_holds_name_and_address() {
        let config = Config::read(
            r#"{"proxies":[{"name":"a","host":"h.example","port":1},{"name":"b","host":"fd00::1","port":2}]}"#,
        )
        .unwrap();
        let placements: Vec<_> = config.proxies.iter().map(Entry::placement).collect();
        assert_eq!(placements, ["a@h.example:1", "b@[fd00::1]:2"]);
    }
}
