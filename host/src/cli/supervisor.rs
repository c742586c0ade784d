//! What a service manager is told (systemd's `Type=notify`); without one nobody listens.

use sd_notify::NotifyState;

use crate::model::pulse::PULSE;

/// It is up: every port is open.
pub(super) fn started() {
    tell(&[NotifyState::Ready]);
}

/// It reads its settings again; [`started`] ends that.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no monotonic time"),
    }
}

/// It ends, when what is under way is done.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says that it lives while all its loops turn, where the unit asks for that (`WatchdogSec=`). Ends never.
pub(super) async fn alive() {
    let Some(within) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    loop {
        if PULSE.silent().is_empty() {
            tell(&[NotifyState::Watchdog]);
        }
        tokio::time::sleep(within / 3).await;
    }
}

fn tell(state: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager was not told");
    }
}
