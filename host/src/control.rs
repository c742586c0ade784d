//! Reconcilers: what objects ask for, made so.
//!
//! ```text
//! changes, verdicts, timers ─▶ queue ─▶ proxy::driver ─ next(object, facts, now) ─▶ a write, a call, or a wait
//!                                   └▶ provider (plugin, grants, config, check, listing)
//! ```
//! The decisions in [`proxy::decide`] are pure; the drivers around them store and call. Knows no axum and no wasmtime.

pub mod backoff;
pub mod collect;
pub mod manager;
pub mod provider;
pub mod proxy;
pub mod queue;
