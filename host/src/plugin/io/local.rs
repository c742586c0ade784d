//! `log`, `clock` and `random`: what needs no grant.

use std::sync::PoisonError;

use rand::Rng;

use crate::model::condition::{one_line, truncate};
use crate::plugin::bindings::crawl::provider::{clock, faults, log, random, types};
use crate::plugin::call::CallState;
use crate::plugin::intercept::Noted;
use crate::plugin::limits::{LOG_BYTES, LOG_FIELDS, LOG_RECORDS, RANDOM_BYTES};
use crate::plugin::log_rate::Record;

impl types::Host for CallState {}
impl faults::Host for CallState {}

impl log::Host for CallState {
    async fn write(
        &mut self,
        level: log::Level,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        self.note(|| Noted::Log(format!("{message} {fields:?}")));
        if fields.iter().any(|(name, _)| name == "panic") {
            // The SDK's panic hook: the trap that follows knows no text of its own.
            self.panic_text = Some(self.clean(&message, 1024));
        }
        self.log_records += 1;
        if self.log_records > LOG_RECORDS {
            if self.log_records == LOG_RECORDS + 1 {
                tracing::warn!(provider = %self.provider, plugin = %self.plugin, call = self.function, "further log records of this call are dropped");
            }
            self.count("log", "too-many");
            self.metrics.dropped_record();
            return Ok(());
        }
        if let Record::Dropped(told) = self.take_record() {
            self.count("log", "too-many");
            self.metrics.dropped_record();
            if let Some(records) = told {
                tracing::warn!(provider = %self.provider, plugin = %self.plugin, records, "too many log records of this Provider were dropped");
            }
            return Ok(());
        }
        self.count("log", "ok");
        let mut text = self.clean(&message, LOG_BYTES);
        for (name, value) in fields.into_iter().take(LOG_FIELDS) {
            // Scrubbed before it is quoted: a secret with a quote or a line end in it would pass in its quoted form.
            let value = self.clean(&value, LOG_BYTES);
            text.push_str(&format!(" {}={value:?}", self.clean(&name, LOG_BYTES)));
        }
        let text = truncate(&text, LOG_BYTES);
        let (provider, plugin, call) = (&self.provider, &self.plugin, self.function);
        match level {
            log::Level::Debug => tracing::debug!(target: "plugin", %provider, %plugin, call, "{text}"),
            log::Level::Info => tracing::info!(target: "plugin", %provider, %plugin, call, "{text}"),
            log::Level::Warn => tracing::warn!(target: "plugin", %provider, %plugin, call, "{text}"),
            log::Level::Error => tracing::error!(target: "plugin", %provider, %plugin, call, "{text}"),
        }
        Ok(())
    }
}

impl CallState {
    fn take_record(&self) -> Record {
        let now = self.clock.monotonic();
        self.log_rate.lock().unwrap_or_else(PoisonError::into_inner).take(now)
    }

    /// Guest text for a log or a status: scrubbed, without control characters, bounded.
    pub(in crate::plugin) fn clean(&self, text: &str, max: usize) -> String {
        one_line(&self.secrets.scrub_beginning(text, 4 * max), max)
    }
}

impl clock::Host for CallState {
    async fn now(&mut self) -> wasmtime::Result<u64> {
        self.note(|| Noted::Clock);
        self.count("clock", "ok");
        Ok(self.clock.wall().as_second().try_into().unwrap_or(0))
    }

    async fn monotonic_ms(&mut self) -> wasmtime::Result<u64> {
        self.note(|| Noted::Clock);
        self.count("clock", "ok");
        Ok(self.clock.monotonic().as_millis() as u64)
    }

    async fn remaining_ms(&mut self) -> wasmtime::Result<u32> {
        self.note(|| Noted::Clock);
        self.count("clock", "ok");
        Ok(self.remaining().as_millis().try_into().unwrap_or(u32::MAX))
    }
}

impl random::Host for CallState {
    async fn bytes(&mut self, len: u32) -> wasmtime::Result<Vec<u8>> {
        let mut bytes = vec![0; len.min(RANDOM_BYTES) as usize];
        rand::rng().fill_bytes(&mut bytes);
        self.note(|| Noted::Random(bytes.clone()));
        self.count("random", "ok");
        Ok(bytes)
    }
}
