//! What authors of provider plugins build on: the contract's types as Rust types, a trait to implement, and helpers for
//! what every provider does.
//!
//! The contract itself is `wit/provider.wit`; its rules as a table stand in `docs/providers.md`. This crate adds no rule
//! and hides none: what it does not cover is reached through [`bindings`].
//!
//! ```no_run
//! use crawl_provider_sdk::*;
//!
//! struct Nowhere;
//!
//! impl Provider for Nowhere {
//!     fn describe() -> Description {
//!         Description::new("nowhere", plugin_version!(), "Has no place for anything")
//!     }
//!     fn validate(_config: &str, _request: Option<&Request>) -> Result<(), Invalid> {
//!         Ok(())
//!     }
//!     fn place(_config: &str, _request: &Request, _avoid: &[String]) -> Result<String, Error> {
//!         Err(Error::exhausted("there is no place"))
//!     }
//!     fn create(_config: &str, _request: &Request) -> Result<Instance, Error> {
//!         Err(Error::exhausted("there is no place"))
//!     }
//!     fn get(_config: &str, _identity: &Identity) -> Result<Presence, Error> {
//!         Ok(Presence::Absent)
//!     }
//!     fn delete(_config: &str, _identity: &Identity) -> Result<Deletion, Error> {
//!         Ok(Deletion::Gone)
//!     }
//!     fn list_instances(_config: &str, _installation: &str, _page: Option<&str>) -> Result<Page, Error> {
//!         Ok(Page::empty())
//!     }
//!     fn check(_config: &str) -> Result<Vec<Finding>, Error> {
//!         Ok(vec![])
//!     }
//! }
//!
//! export_provider!(Nowhere);
//! ```
#![deny(missing_docs)]

pub mod bindings;
mod config;
mod error;
mod fault;
pub mod http;
pub mod log;
mod name;
mod panic;
mod provider;
pub mod random;
pub mod secrets;
mod shapes;
pub mod ssh;
pub mod testing;
pub mod time;

pub use bindings::crawl::provider::faults::{Fault, FaultKind};
pub use bindings::crawl::provider::types::*;
pub use config::{parse_config, parse_parameters};
pub use name::instance_name;
pub use provider::{Adapter, Provider};
