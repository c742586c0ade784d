//! `secrets`: raw values of what the Provider grants. The value is remembered by the call, to be scrubbed from its output.

use tracing::Instrument;

use super::fault;
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::bindings::crawl::provider::secrets::Host;
use crate::plugin::call::CallState;
use crate::plugin::intercept::Noted;

impl Host for CallState {
    async fn get(&mut self, name: String) -> wasmtime::Result<Result<Vec<u8>, Fault>> {
        self.note(|| Noted::Secret(name.clone()));
        let watch = self.watch("secrets", None);
        let grants = self.grants.clone();
        let sent_before = self.progress.begin(format!("secret {name:?}"), false);
        let found = grants.secret(&name).instrument(watch.span.clone()).await;
        self.progress.end(sent_before);
        let answer = match found {
            None => Err(fault(
                FaultKind::UnknownConnection,
                false,
                format!("the Provider grants no secret {name:?} under spec.secrets"),
            )),
            Some(Err(e)) => Err(fault(FaultKind::Credential, false, e.to_string())),
            Some(Ok(value)) => {
                let bytes = value.expose().to_vec();
                self.secrets.push(value);
                Ok(bytes)
            }
        };
        watch.ended(&answer);
        Ok(answer)
    }
}
