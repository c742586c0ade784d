//! Labs that the suites run in.

pub mod plugins;
