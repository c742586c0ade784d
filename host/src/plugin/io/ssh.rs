//! `ssh`: granted by name; no session is opened by this version.

use super::fault;
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::bindings::crawl::provider::ssh::{Command, Host, Output};
use crate::plugin::call::CallState;
use crate::plugin::grants::Granted;

impl Host for CallState {
    async fn exec(&mut self, connection: String, command: Command) -> wasmtime::Result<Result<Output, Fault>> {
        self.watched_exec(connection, command).await
    }
}

impl CallState {
    /// Runs it over the connection.
    pub(in crate::plugin) async fn exec_now(
        &mut self,
        connection: String,
        _: Command,
    ) -> wasmtime::Result<Result<Output, Fault>> {
        Ok(Err(match self.grants.connections.get(&connection) {
            Some(Granted::Ssh) => fault(
                FaultKind::NotConfigured,
                false,
                format!("connection {connection:?}: this version of the operator opens no SSH sessions"),
            ),
            _ => fault(
                FaultKind::UnknownConnection,
                false,
                format!("the Provider grants no ssh connection {connection:?}"),
            ),
        }))
    }
}
