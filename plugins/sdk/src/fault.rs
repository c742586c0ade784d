//! From the host's faults to errors: which kind, which reason.

use crate::{Error, ErrorKind, Fault, FaultKind};

impl Error {
    /// What a failed I/O call means. `mutating`: the call would have changed the backend. When such a call was sent, its
    /// outcome is unknown whatever went wrong after, and only `get` can tell.
    pub fn from_fault(fault: &Fault, mutating: bool) -> Self {
        let (kind, reason) = classify(fault.kind);
        let kind = if mutating && fault.sent { ErrorKind::UnknownOutcome } else { kind };
        Self::new(kind, &fault.message).reason(reason)
    }
}

fn classify(kind: FaultKind) -> (ErrorKind, &'static str) {
    match kind {
        FaultKind::Unreachable => (ErrorKind::Transient, "Unreachable"),
        FaultKind::Dns => (ErrorKind::Transient, "DnsFailed"),
        FaultKind::TimedOut => (ErrorKind::Transient, "TimedOut"),
        FaultKind::Lost => (ErrorKind::Transient, "ConnectionLost"),
        FaultKind::Busy => (ErrorKind::Transient, "Busy"),
        FaultKind::UnknownConnection => (ErrorKind::ConfigMissing, "ConnectionNotGranted"),
        FaultKind::NotConfigured => (ErrorKind::ConfigMissing, "ConnectionNotConfigured"),
        // The message names the rule; the way out is a line in the Provider.
        FaultKind::Denied => (ErrorKind::ConfigMissing, "Denied"),
        FaultKind::Credential => (ErrorKind::Unauthorized, "CredentialMissing"),
        FaultKind::AuthRefused => (ErrorKind::Unauthorized, "AuthRefused"),
        FaultKind::HostKeyUnknown => (ErrorKind::Unauthorized, "HostKeyUnknown"),
        FaultKind::HostKeyChanged => (ErrorKind::Unauthorized, "HostKeyChanged"),
        FaultKind::Tls => (ErrorKind::Unauthorized, "TlsFailed"),
        // The same call gives the same size again: the plugin has to ask for less, so it is the plugin's fault.
        FaultKind::TooLarge => (ErrorKind::Internal, "TooLarge"),
        // A peer that talks nonsense is mostly one that is starting, or a balancer in front of nothing: it passes.
        FaultKind::Protocol => (ErrorKind::Transient, "ProtocolError"),
        // The host could not say. Blaming the plugin would hide a backend that is down.
        FaultKind::Other => (ErrorKind::Transient, "IoFailed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_fault(kind: FaultKind, sent: bool) -> Fault {
        Fault { kind, sent, message: "text".into() }
    }

    #[test]
    fn a_change_that_was_sent_has_an_unknown_outcome() {
        for kind in [FaultKind::Lost, FaultKind::TimedOut, FaultKind::TooLarge, FaultKind::Other] {
            assert_eq!(Error::from_fault(&mk_fault(kind, true), true).kind, ErrorKind::UnknownOutcome);
            assert_ne!(Error::from_fault(&mk_fault(kind, false), true).kind, ErrorKind::UnknownOutcome);
            assert_ne!(Error::from_fault(&mk_fault(kind, true), false).kind, ErrorKind::UnknownOutcome);
        }
    }

    #[test]
    fn each_fault_has_its_kind() {
        let cases = [
            (FaultKind::Unreachable, ErrorKind::Transient),
            (FaultKind::Busy, ErrorKind::Transient),
            (FaultKind::UnknownConnection, ErrorKind::ConfigMissing),
            (FaultKind::Denied, ErrorKind::ConfigMissing),
            (FaultKind::Credential, ErrorKind::Unauthorized),
            (FaultKind::HostKeyChanged, ErrorKind::Unauthorized),
            (FaultKind::Tls, ErrorKind::Unauthorized),
            (FaultKind::TooLarge, ErrorKind::Internal),
        ];
        for (fault, kind) in cases {
            assert_eq!(Error::from_fault(&mk_fault(fault, false), false).kind, kind);
        }
    }
}
