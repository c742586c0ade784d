//! The last lines that the operator logged, by the object that they are about.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::model::condition::truncate;

/// Lines that are kept, and bytes of them all.
const LINES: usize = 4096;
const BYTES: usize = 2 << 20;
/// A longer line is cut.
const LINE_BYTES: usize = 4096;
/// A request waits no longer for a new line.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// One line.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LogLine {
    /// When.
    pub at: Timestamp,
    /// As tracing calls it.
    pub level: String,
    /// The module that wrote it, or `plugin`.
    pub target: String,
    /// What it says, with its fields.
    pub text: String,
    /// The objects that it is about: `proxy/NAMESPACE/NAME`, `provider/NAME`.
    #[serde(skip)]
    pub about: Vec<String>,
}

/// A part of the lines.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct LogPart {
    /// The lines, oldest first.
    pub lines: Vec<LogLine>,
    /// What comes after has this number or a later one.
    pub next: u64,
}

/// The last lines, in memory only.
#[derive(Default)]
pub struct LogLines {
    kept: Mutex<Kept>,
    more: Notify,
}

#[derive(Default)]
struct Kept {
    lines: VecDeque<LogLine>,
    bytes: usize,
    /// The number of the first line that is kept.
    first: u64,
}

impl LogLines {
    /// Keeps a line, in the place of the oldest.
    pub fn record(&self, mut line: LogLine) {
        line.text = truncate(&line.text, LINE_BYTES);
        let mut kept = self.lock();
        kept.bytes += line.text.len();
        kept.lines.push_back(line);
        while kept.lines.len() > LINES || kept.bytes > BYTES {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.text.len();
            kept.first += 1;
        }
        drop(kept);
        self.more.notify_waiters();
    }

    /// Lines from a number on (none: all) that are about an object (none: any), at most the last `tail`.
    pub fn read(&self, from: u64, about: Option<&str>, tail: usize) -> LogPart {
        let kept = self.lock();
        let fresh = kept.lines.iter().skip(from.saturating_sub(kept.first).try_into().unwrap_or(usize::MAX));
        let mut lines: Vec<LogLine> = fresh
            .rev()
            .filter(|line| about.is_none_or(|object| line.about.iter().any(|one| one == object)))
            .take(tail)
            .cloned()
            .collect();
        lines.reverse();
        LogPart { lines, next: kept.first + kept.lines.len() as u64 }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Wanted {
    from: u64,
    about: Option<String>,
    tail: usize,
    /// Whether to wait for a line when there is none.
    wait: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { from: 0, about: None, tail: LINES, wait: false }
    }
}

pub(super) fn routes(lines: Arc<LogLines>) -> Router {
    Router::new().route("/logs", get(read)).with_state(lines)
}

async fn read(State(lines): State<Arc<LogLines>>, Query(wanted): Query<Wanted>) -> Response {
    let until = tokio::time::Instant::now() + LONGEST_WAIT;
    let mut from = wanted.from;
    loop {
        let more = lines.more.notified();
        tokio::pin!(more);
        // Listening before looking: what comes in between wakes us.
        more.as_mut().enable();
        let part = lines.read(from, wanted.about.as_deref(), wanted.tail);
        if !wanted.wait || !part.lines.is_empty() {
            return Json(part).into_response();
        }
        from = part.next;
        if tokio::time::timeout_at(until, more).await.is_err() {
            return Json(part).into_response();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, about: &str) -> LogLine {
        let about = vec![about.to_owned()];
        LogLine { at: Timestamp::UNIX_EPOCH, level: "INFO".into(), target: "t".into(), text: text.into(), about }
    }

    fn texts(part: &LogPart) -> Vec<&str> {
        part.lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn the_last_lines_are_kept_and_found_by_object() {
        let lines = LogLines::default();
        for n in 0..LINES + 10 {
            lines.record(line(&n.to_string(), if n % 2 == 0 { "proxy/a/b" } else { "provider/p" }));
        }
        let all = lines.read(0, None, usize::MAX);
        assert_eq!((all.lines.len(), all.next, texts(&all)[0]), (LINES, LINES as u64 + 10, "10"));
        assert_eq!(texts(&lines.read(0, Some("proxy/a/b"), 2)), ["4102", "4104"]);
        assert_eq!(texts(&lines.read(all.next - 2, Some("provider/p"), 9)), ["4105"]);
        assert!(lines.read(all.next, None, 9).lines.is_empty() && lines.read(u64::MAX, None, 9).lines.is_empty());
    }

    #[test]
    fn long_lines_are_cut_and_do_not_fill_the_memory() {
        let lines = LogLines::default();
        for _ in 0..LINES {
            lines.record(line(&"é".repeat(LINE_BYTES), "x"));
        }
        let all = lines.read(0, None, usize::MAX);
        assert!(all.lines.iter().map(|l| l.text.len()).sum::<usize>() <= BYTES, "{}", all.lines.len());
        assert!(all.lines.iter().all(|l| l.text.len() <= LINE_BYTES));
    }
}
