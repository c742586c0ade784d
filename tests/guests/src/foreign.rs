// Included by the fixtures that are bound to another contract: every function of a `Guest`, on the types that
// `generate!` has made beside this. Only `describe` is ever in reach of a test, and the host should not even call that.

use crawl::provider::types::*;
use exports::crawl::provider::provider::Guest;

struct Foreign;

impl Guest for Foreign {
    fn describe() -> Description {
        Description {
            name: NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: summary(),
            config_schema: "{}".into(),
            parameters_schema: "{}".into(),
            connections: vec![],
            connection_pointers: vec![],
            capabilities: vec![],
            extra: vec![],
        }
    }

    fn validate(_: String, _: Option<Request>) -> Result<(), Invalid> {
        Ok(())
    }

    fn place(_: String, _: Request, _: Vec<String>) -> Result<String, Error> {
        Ok("here".into())
    }

    fn create(_: String, _: Request) -> Result<Instance, Error> {
        unreachable!("the host refuses this plugin")
    }

    fn get(_: String, _: Identity) -> Result<Presence, Error> {
        Ok(Presence::Absent)
    }

    fn delete(_: String, _: Identity) -> Result<Deletion, Error> {
        Ok(Deletion::Gone)
    }

    fn list_instances(_: String, _: String, _: Option<String>) -> Result<Page, Error> {
        Ok(Page { instances: vec![], next: None })
    }

    fn check(_: String) -> Result<Vec<Finding>, Error> {
        Ok(vec![])
    }
}

#[cfg(target_family = "wasm")]
export!(Foreign);

// As in the SDK: no other linker takes these exports.
#[cfg(not(target_family = "wasm"))]
const _: fn() -> Description = <Foreign as Guest>::describe;
