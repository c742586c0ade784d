//! Well-behaved and without I/O: for benchmarks, and, since it tells all it knows, for tests of redaction.
//!
//! With `{"secret": NAME}` in its config, `validate` logs that secret's value. `validate` and `create` log the login they
//! got, and `create` returns it in the instance's message; the host must scrub all three.

use crawl_provider_sdk::*;
use test_guests::{Fixture, Guest, instance};

struct Echo;

impl Fixture for Echo {
    const NAME: &'static str = "echo";

    fn validate(config: &str, request: Option<&Request>) -> Result<(), Invalid> {
        let config: serde_json::Value = parse_config(config)?;
        if let Some(name) = config["secret"].as_str() {
            match secrets::get(name) {
                Ok(value) => log::info("granted secret", &[("value", &String::from_utf8_lossy(&value))]),
                Err(error) => return Err(Invalid::field("/config/secret", error.message)),
            }
        }
        request.map(log_login);
        Ok(())
    }

    /// Another place each time, from the host's random bytes.
    fn place(_config: &str, _request: &Request, _avoid: &[String]) -> Result<String, Error> {
        let id: String = random::bytes(8).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("here@{id}"))
    }

    fn create(_config: &str, request: &Request) -> Result<Instance, Error> {
        let mut made = instance(Self::NAME, &request.identity);
        made.message = log_login(request);
        Ok(made)
    }

    fn get(config: &str, _identity: &Identity) -> Result<Presence, Error> {
        let _config: serde_json::Value = parse_config(config)?;
        Ok(Presence::Absent)
    }
}

fn log_login(request: &Request) -> Option<String> {
    let login = request.login.as_ref()?;
    log::info("login", &[("username", &login.username), ("password", &login.password)]);
    Some(format!("login {}:{}", login.username, login.password))
}

export_provider!(Guest<Echo>);
