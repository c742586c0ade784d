//! proxy-operator keeps fleets of forward proxies alive for web crawlers.
//!
//! Its backends are WebAssembly components against the contract in `wit/`. The modules stand in order: each uses only
//! those above it (`docs/architecture.md`).

#![deny(missing_docs)]

pub mod cli;
pub mod conformance;
pub mod control;
pub mod forward_proxy;
pub mod health;
pub mod lease;
pub mod model;
pub mod plugin;
pub mod rest;
pub mod sandbox_cloud;
pub mod store;
