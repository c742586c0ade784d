//! What is logged, also while the operator runs; and the last of it in memory, for `logs`.

use std::fmt::{self, Write as _};
use std::io::IsTerminal;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt as lines, reload};

use super::terminal::colours;
use crate::rest::local::{LogLine, LogLines, Logging};

/// Begins to log to standard error; answers how the filter is changed later, and where the last lines are.
pub(super) fn init(filter: &str, json: bool) -> Logging {
    let first = EnvFilter::try_new(filter).unwrap_or_else(|error| {
        eprintln!("warning: --log {filter:?} is passed over: {error}");
        EnvFilter::new("info")
    });
    let (first, handle) = reload::Layer::new(first);
    let written = lines::layer().with_writer(std::io::stderr).with_ansi(colours(std::io::stderr().is_terminal()));
    let written: Box<dyn Layer<Registry> + Send + Sync> =
        if json { written.json().flatten_event(true).with_current_span(false).boxed() } else { written.boxed() };
    let kept = Arc::new(LogLines::default());
    tracing_subscriber::registry().with(written.and_then(Keep(kept.clone())).with_filter(first)).init();
    let set = Arc::new(move |filter: &str| {
        let parsed = EnvFilter::try_new(filter).map_err(|e| format!("{filter:?} is no filter: {e}"))?;
        handle.reload(parsed).map_err(|e| e.to_string())
    });
    Logging { set, lines: kept }
}

/// Keeps each line by the objects that its fields name.
struct Keep(Arc<LogLines>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Keep {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut read = Read::default();
        attributes.record(&mut read);
        if let Some(span) = context.span(id).filter(|_| !read.about.is_empty()) {
            span.extensions_mut().insert(About(read.about));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut read = Read::default();
        event.record(&mut read);
        // A line within a call is about that call's provider.
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(About(about)) = span.extensions().get::<About>() {
                read.about.extend(about.iter().cloned());
            }
        }
        let metadata = event.metadata();
        self.0.record(LogLine {
            at: jiff::Timestamp::now(),
            level: metadata.level().to_string(),
            target: metadata.target().to_owned(),
            text: (read.message + &read.fields).trim_start().to_owned(),
            about: read.about,
        });
    }
}

/// The objects that the fields of a span name.
struct About(Vec<String>);

#[derive(Default)]
struct Read {
    message: String,
    fields: String,
    about: Vec<String>,
}

impl Visit for Read {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field.name(), &format!("{value:?}"));
    }
}

impl Read {
    fn take(&mut self, field: &str, value: &str) {
        match field {
            "message" => self.message = value.to_owned(),
            field => {
                match field {
                    "proxy" | "provider" => self.about.push(format!("{field}/{value}")),
                    "regarding" => self.about.push(value.to_owned()),
                    _ => {}
                }
                // A String takes all that is written.
                let _ = write!(self.fields, " {field}={value}");
            }
        }
    }
}
