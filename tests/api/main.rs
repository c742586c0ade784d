//! Our objects on a real API server, as people with kubectl see them.

mod crds;
mod deletion;
mod logins;
mod main_job;
mod plugins;
mod tokens;
mod wrong_objects;
