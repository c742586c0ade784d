//! The plugin host: from the bytes of a `.wasm` file to answered calls.
//!
//! ```text
//! source (directory) ─ bytes ─▶ load: size → digest → contract → compile or cache → describe ─▶ registry
//! registry ─ plugin ─▶ handle (plugin + grants + limits of one Provider) ─ call ─▶ one fresh Store, one instance
//! ```
//! What comes from objects enters through [`grants::Secrets`]; nothing here knows Kubernetes objects or REST.

mod bindings;
mod breaker;
mod call;
pub mod compiler;
pub mod contract;
mod convert;
pub mod engine;
pub mod grants;
pub mod handle;
mod holding;
pub mod intercept;
mod io;
pub mod limits;
pub mod load;
mod log_rate;
mod packages;
pub mod registry;
pub mod source;
