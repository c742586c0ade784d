//! What the cloud's answers lead to: an instance, nothing, or an error with its kind.

use crawl_provider_sdk::http::Answer;
use crawl_provider_sdk::{Error, Progress};

use crate::placing::Placement;
use crate::wire::{Instance, POLL_AFTER_MS, Refusal};

pub fn of_create(at: &Placement, name: &str, answer: &Answer) -> Result<Instance, Error> {
    let refusal = refusal(answer);
    match (answer.status, refusal.error.as_str()) {
        (200 | 201, _) => answer.json(),
        (403, "quota") => {
            Err(Error::exhausted(format!("{}: {}", at.zone, refusal.message)).reason("QuotaExceeded").target(&at.zone))
        }
        (409, "foreign") => Err(Error::foreign(format!(
            "the name {name} in {} is taken by an instance of another owner; it was not touched",
            at.zone
        ))
        .target(&at.zone)),
        _ => Err(refused(at, answer, &refusal)),
    }
}

/// None: the cloud has no such instance. Whether it is the right cloud is for the caller to find.
pub fn of_get(at: &Placement, answer: &Answer) -> Result<Option<Instance>, Error> {
    let refusal = refusal(answer);
    match (answer.status, refusal.error.as_str()) {
        (200, _) => answer.json().map(Some),
        (404, "no_such_instance") => Ok(None),
        _ => Err(refused(at, answer, &refusal)),
    }
}

pub fn of_start(at: &Placement, name: &str, answer: &Answer) -> Result<Instance, Error> {
    let refusal = refusal(answer);
    match (answer.status, refusal.error.as_str()) {
        (200, _) => answer.json(),
        // It changed between the two requests; the next call sees what it is now.
        (404, "no_such_instance") | (409, "wrong_state") => {
            Err(Error::transient(format!("{name} changed before it was started: {}", refusal.message))
                .reason("StateChanged")
                .target(&at.zone))
        }
        _ => Err(refused(at, answer, &refusal)),
    }
}

/// The cloud is at it, or it went in between.
pub fn of_delete(at: &Placement, answer: &Answer) -> Result<(), Error> {
    let refusal = refusal(answer);
    match (answer.status, refusal.error.as_str()) {
        (202, _) | (404, "no_such_instance") => Ok(()),
        _ => Err(refused(at, answer, &refusal)),
    }
}

pub fn progress() -> Progress {
    Progress { message: None, poll_after_ms: Some(POLL_AFTER_MS), continuation: None }
}

/// What every request may be told.
fn refused(at: &Placement, answer: &Answer, refusal: &Refusal) -> Error {
    match (answer.status, refusal.error.as_str()) {
        (404, "no_such_zone") => at.zone_missing(),
        // A 404 in no shape that this API has: something else answers. Believing it would lose an instance.
        (404, _) => Error::config_missing("what answers is not the sandbox cloud; check the connection's baseUrl")
            .reason("BackendChanged")
            .target(&at.zone),
        _ => answer.error().target(&at.zone),
    }
}

fn refusal(answer: &Answer) -> Refusal {
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

#[cfg(test)]
mod tests;
