//! Config and parameters: their schemas, and what schemas cannot say.

use crawl_provider_sdk::{FieldError, Invalid, Request, parse_config, parse_parameters};
use serde::Deserialize;

use crate::wire::{Create, Tags};

pub const CONFIG_SCHEMA: &str = include_str!("config.schema.json");
pub const PARAMETERS_SCHEMA: &str = include_str!("parameters.schema.json");

/// What Provider and Proxy want together.
#[derive(Debug, Default)]
pub struct Settings {
    /// Zones that may be used; none: every one of the cloud.
    pub zones: Option<Vec<String>>,
    boot_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    zones: Option<Vec<String>>,
    boot_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Parameters {
    boot_ms: Option<u64>,
}

impl Settings {
    pub fn read(config: &str, request: Option<&Request>) -> Result<Self, Invalid> {
        let config: Config = parse_config(config)?;
        let mut settings = Self { zones: config.zones, boot_ms: config.boot_ms };
        let mut errors = vec![];
        if let Some(request) = request {
            match parse_parameters::<Parameters>(&request.parameters) {
                Ok(parameters) => settings.boot_ms = parameters.boot_ms.or(settings.boot_ms),
                Err(invalid) => errors.extend(invalid.errors),
            }
            settings.judge(request, &mut errors);
        }
        Invalid::unless_empty(errors)?;
        Ok(settings)
    }

    /// What can be told without asking the cloud.
    fn judge(&self, request: &Request, errors: &mut Vec<FieldError>) {
        if let (Some(zones), Some(location)) = (&self.zones, &request.location)
            && !zones.contains(location)
        {
            errors.push(unknown_location(location, zones));
        }
        // A name that nothing looks at would be a typo that nobody finds.
        for (pointer, name) in [("/image", &request.image), ("/size", &request.size)] {
            if name.is_some() {
                errors.push(FieldError::new(pointer, "the sandbox cloud has no such catalogue; leave the field out"));
            }
        }
        if !matches!(request.protocol.as_str(), "http" | "socks5") {
            errors.push(FieldError::new("/protocol", "accepted: http, socks5"));
        }
    }

    pub fn body(&self, request: &Request) -> Create {
        let login = request.login.as_ref();
        Create {
            owner: Tags::from(&request.identity.owner),
            incarnation: request.identity.incarnation,
            spec_hash: request.spec_hash.clone(),
            protocol: request.protocol.clone(),
            username: login.map(|login| login.username.clone()),
            password: login.map(|login| login.password.clone()),
            allow_targets: request.must_reach.clone(),
            boot_ms: self.boot_ms,
        }
    }
}

pub fn unknown_location(location: &str, zones: &[String]) -> FieldError {
    FieldError::new("/location", format!("there is no zone {location}; accepted: {}", zones.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crawl_provider_sdk::{Login, testing};

    fn pointers(config: &str, request: &Request) -> Vec<String> {
        Settings::read(config, Some(request)).unwrap_err().errors.into_iter().map(|field| field.pointer).collect()
    }

    #[test]
    fn schemas_describe_what_is_read() {
        for (schema, names) in [(CONFIG_SCHEMA, vec!["bootMs", "zones"]), (PARAMETERS_SCHEMA, vec!["bootMs"])] {
            let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
            assert_eq!(schema["additionalProperties"], false);
            let properties = schema["properties"].as_object().unwrap();
            assert_eq!(properties.keys().collect::<Vec<_>>(), names);
            assert!(properties.values().all(|property| property["description"].is_string()));
        }
    }

    #[test]
    fn every_wrong_field_is_named_at_once() {
        let mut request = testing::request();
        request.parameters = r#"{"bootMs":"soon"}"#.into();
        request.location = Some("zone-z".into());
        request.size = Some("small".into());
        assert_eq!(pointers(r#"{"zones":["zone-a"]}"#, &request), ["/parameters/bootMs", "/location", "/size"]);
    }

    #[test]
    fn parameters_come_before_config() {
        let mut request = testing::request();
        let body = |request: &Request| Settings::read(r#"{"bootMs":1}"#, Some(request)).unwrap().body(request);
        assert_eq!(body(&request).boot_ms, Some(1));
        request.parameters = r#"{"bootMs":2}"#.into();
        assert_eq!(body(&request).boot_ms, Some(2));
    }

    #[test]
    fn a_create_carries_owner_login_and_judges() {
        let mut request = testing::request();
        request.must_reach = vec!["10.0.0.1:8082".into()];
        let open = serde_json::to_value(Settings::default().body(&request)).unwrap();
        assert!(open.get("username").is_none() && open.get("bootMs").is_none());
        assert_eq!(open["allowTargets"][0], "10.0.0.1:8082");
        assert_eq!(open["owner"]["proxyUid"], request.identity.owner.proxy_uid.as_str());
        request.login = Some(Login { username: "u".into(), password: "p".into() });
        let closed = serde_json::to_value(Settings::default().body(&request)).unwrap();
        assert_eq!((&closed["username"], &closed["password"]), (&"u".into(), &"p".into()));
    }
}
