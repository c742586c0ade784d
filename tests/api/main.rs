//! Our objects on a real API server, as people with kubectl see them.

mod crds;
mod lab;
mod main_job;
mod tokens;
