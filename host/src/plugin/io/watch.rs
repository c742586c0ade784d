//! Counts what a plugin asks of the operator, and puts it into a span of its own. Labels are known words: neither URL nor
//! host nor what a guest says.

use std::sync::Arc;
use std::time::Instant;

use tracing::Span;
use tracing::field::Empty;

use crate::model::metrics::ProviderMetrics;
use crate::plugin::bindings::crawl::provider::faults::{Fault, FaultKind};
use crate::plugin::call::CallState;

/// A host call that waits for somebody. Dropped before it ended, it counts as `dropped`.
pub(in crate::plugin) struct Watch {
    metrics: Arc<ProviderMetrics>,
    call: &'static str,
    outcome: &'static str,
    started: Instant,
    /// What is logged on its behalf belongs in here.
    pub span: Span,
}

impl CallState {
    /// Begins to watch. `connection`: one that the Provider grants, under the name of which a guest cannot say anything.
    pub(in crate::plugin) fn watch(&self, call: &'static str, connection: Option<&str>) -> Watch {
        let span = tracing::debug_span!("host_call", call, connection, outcome = Empty);
        Watch { metrics: self.metrics.clone(), call, outcome: "dropped", started: Instant::now(), span }
    }

    /// Counts one that waits for nobody.
    pub(in crate::plugin) fn count(&self, call: &'static str, outcome: &'static str) {
        self.metrics.host_called(call, outcome, None);
    }
}

impl Watch {
    /// It ended.
    pub fn ended<T>(mut self, answer: &Result<T, Fault>) {
        self.outcome = answer.as_ref().map_or_else(|fault| label(fault.kind), |_| "ok");
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        self.span.record("outcome", self.outcome);
        self.metrics.host_called(self.call, self.outcome, Some(took));
        let ms = took.as_millis() as u64;
        self.span.in_scope(|| tracing::debug!(ms, "host function called"));
    }
}

/// The fault as `docs/providers.md` names it.
fn label(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::UnknownConnection => "unknown-connection",
        FaultKind::NotConfigured => "not-configured",
        FaultKind::Credential => "credential",
        FaultKind::Denied => "denied",
        FaultKind::Dns => "dns",
        FaultKind::Unreachable => "unreachable",
        FaultKind::Tls => "tls",
        FaultKind::HostKeyUnknown => "host-key-unknown",
        FaultKind::HostKeyChanged => "host-key-changed",
        FaultKind::AuthRefused => "auth-refused",
        FaultKind::TimedOut => "timed-out",
        FaultKind::Lost => "lost",
        FaultKind::TooLarge => "too-large",
        FaultKind::Busy => "busy",
        FaultKind::Protocol => "protocol",
        FaultKind::Other => "other",
    }
}
