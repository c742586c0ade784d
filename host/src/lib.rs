//! proxy-operator keeps fleets of forward proxies alive for web crawlers.
//!
//! Its backends are WebAssembly components against the contract in `wit/`. The modules stand in order: each uses only
//! those above it (`docs/architecture.md`).

#![deny(missing_docs)]

pub mod forward_proxy;
pub mod health;
pub mod lease;
pub mod control;
pub mod rest;
pub mod model;
pub mod plugin;
pub mod sandbox_cloud;
pub mod cli;
pub mod store;
