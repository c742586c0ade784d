//! What is told: findings, messages, hints, logs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use base64::Engine as _;

use super::observing::plain;
use crate::conformance::kit::{Kit, Otherwise, Step, ensure, fail, failed, not_applicable, told};
use crate::conformance::observer::Plan;
use crate::model::error::CallError;
use crate::model::instance::{Deletion, Presence};
use crate::model::secret::{REDACTED, SecretBytes};
use crate::plugin::handle::Handle;
use crate::plugin::intercept::Noted;

/// What the operator keeps to; outside it is either a loop or forgotten.
const POLLS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(600));

pub async fn findings(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let placement = kit.placed(&handle).await?.identity.placement;
    kit.observer.plan(Plan::Nothing);
    let findings = handle.check().await.map_err(failed("check"))?;
    let requests = kit.observer.calls().len();
    let targets: BTreeSet<_> = findings.iter().map(|finding| finding.target.as_str()).collect();
    ensure!(targets.len() == findings.len(), "a target has two findings");
    ensure!(requests <= findings.len().max(1), "check made {requests} requests for {} targets", findings.len());
    let target = placement.split_once('@').map_or(placement.as_str(), |(target, _)| target);
    ensure!(targets.contains(target), "place answered {placement}, and check has no finding for {target}");
    for finding in &findings {
        ensure!(
            finding.healthy == (finding.reason == "Ok"),
            "the finding for {} is {} with reason {}",
            finding.target,
            if finding.healthy { "healthy" } else { "not healthy" },
            finding.reason
        );
    }
    Ok(())
}

pub async fn messages_stable(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    let mut gets = vec![];
    for _ in 0..2 {
        match handle.get(&request.identity).await.map_err(failed("get"))? {
            Presence::Present(found) => gets.push(plain(*found)),
            Presence::Absent => fail!("what runs is absent"),
        }
    }
    ensure!(gets[0] == gets[1], "asked twice, get answered {:?} and then {:?}", gets[0], gets[1]);
    let checks = [handle.check().await, handle.check().await];
    ensure!(checks[0] == checks[1], "asked twice, check answered {:?} and then {:?}", checks[0], checks[1]);
    if kit.makes().is_ok() {
        kit.observer.plan(Plan::Unreachable);
        let errors = [handle.get(&request.identity).await, handle.get(&request.identity).await];
        kit.observer.plan(Plan::Nothing);
        ensure!(errors[0] == errors[1], "get failed with {:?} and then {:?}", errors[0], errors[1]);
    }
    Ok(())
}

pub async fn poll_after_bounds(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let mut request = kit.placed(&handle).await?;
    let mut hints = vec![];
    hints.push(("create", handle.create(&request).await.map_err(failed("create"))?.poll_after));
    kit.drive(&handle, &mut request).await?;
    if let Presence::Present(found) = handle.get(&request.identity).await.map_err(failed("get"))? {
        hints.push(("get", found.poll_after));
    }
    if let Deletion::InProgress { poll_after, .. } = handle.delete(&request.identity).await.map_err(failed("delete"))? {
        hints.push(("delete", poll_after));
    }
    for (function, hint) in hints {
        if let Some(hint) = hint {
            ensure!((POLLS.0..=POLLS.1).contains(&hint), "{function} asks to be called again after {hint:?}");
        }
    }
    Ok(())
}

pub async fn deadline_kept(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let limit = handle.call_timeout() / 2;
    let mut request = kit.placed(&handle).await?;
    let _verdict = quick("validate", limit, handle.validate(Some(&request))).await?;
    quick("create", limit, handle.create(&request)).await?;
    quick("list-instances", limit, handle.list()).await?;
    quick("check", limit, handle.check()).await?;
    kit.drive(&handle, &mut request).await?;
    quick("get", limit, handle.get(&request.identity)).await?;
    quick("delete", limit, handle.delete(&request.identity)).await?;
    Ok(())
}

async fn quick<T>(
    function: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, CallError>>,
) -> Step<T> {
    let since = Instant::now();
    let answer = call.await.map_err(failed(function))?;
    let took = since.elapsed();
    ensure!(took <= limit, "{function} took {took:.1?}, over half of limits.callTimeout");
    Ok(answer)
}

pub async fn random_differs(kit: &Kit) -> Step {
    if !kit.subject.imports.iter().any(|import| import.contains("random")) {
        not_applicable!("it imports no random");
    }
    let handle = kit.handle()?;
    let first = drawn(kit, &handle).await?;
    differ(&first, &drawn(kit, &handle).await?)
}

/// What `place` and `create` of one proxy draw, of the contract's random and of WASI's.
async fn drawn(kit: &Kit, handle: &Handle) -> Step<Vec<Vec<u8>>> {
    kit.observer.plan(Plan::Nothing);
    let request = kit.placed(handle).await?;
    handle.create(&request).await.map_err(failed("create"))?;
    let notes = kit.observer.notes().into_iter().filter_map(|(_, noted)| match noted {
        // Fewer are alike by chance.
        Noted::Random(bytes) | Noted::WasiRandom(bytes) if bytes.len() >= 4 => Some(bytes),
        _ => None,
    });
    Ok(notes.collect())
}

fn differ(first: &[Vec<u8>], second: &[Vec<u8>]) -> Step {
    if first.is_empty() || second.is_empty() {
        not_applicable!("place and create ask for no random bytes");
    }
    ensure!(first != second, "two fresh instances drew the same bytes");
    Ok(())
}

pub async fn nothing_secret(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let mut request = kit.placed(&handle).await?;
    let mut secrets = kit.credentials().await;
    secrets.extend(request.login.iter().map(|login| login.password.clone()));
    let secrets = forms(&secrets);
    // Each answer, an error too: texts of errors are where backends' words come through.
    kit.observer.plan(Plan::Nothing);
    let mut said = vec![];
    said.push(("validate", answer(handle.validate(Some(&request)).await)));
    said.push(("create", answer(handle.create(&request).await)));
    kit.drive(&handle, &mut request).await?;
    said.push(("get", answer(handle.get(&request.identity).await)));
    said.push(("list-instances", answer(handle.list().await)));
    said.push(("check", answer(handle.check().await)));
    said.push(("delete", answer(handle.delete(&request.identity).await)));
    let mut logs = kit.observer.notes();
    kit.observer.plan(Plan::Unreachable);
    said.push(("create", answer(handle.create(&request).await)));
    logs.extend(kit.observer.notes());
    let poor = kit.handle_otherwise(Otherwise { nothing_granted: true, ..Otherwise::default() })?;
    said.push(("create", answer(poor.create(&request).await)));
    for (function, text) in said {
        // The operator took it out.
        ensure!(!text.contains(REDACTED), "{function} answered with a secret: {text}");
        ensure!(!secrets.iter().any(|secret| text.contains(secret)), "{function} answered with a secret");
    }
    for (function, noted) in logs {
        if let Noted::Log(line) = noted {
            ensure!(!secrets.iter().any(|secret| line.contains(secret)), "{function} logged a secret");
        }
    }
    Ok(())
}

fn answer<T: std::fmt::Debug>(answer: Result<T, CallError>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => told(&error),
    }
}

/// Secrets as they may stand somewhere: plain, and as base64. Short ones would be found by chance.
fn forms(secrets: &[SecretBytes]) -> Vec<String> {
    let long = secrets.iter().filter_map(SecretBytes::expose_line).filter(|text| text.len() >= 8);
    long.flat_map(|text| [text.to_owned(), base64::engine::general_purpose::STANDARD.encode(text)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::kit::End;

    #[test]
    fn draws_that_are_alike_fail_and_none_say_nothing() {
        let (one, other) = (vec![vec![1, 2, 3, 4]], vec![vec![1, 2, 3, 5]]);
        assert!(differ(&one, &other).is_ok());
        assert!(matches!(differ(&one, &one.clone()), Err(End::Failed(_))));
        assert!(matches!(differ(&one, &[]), Err(End::NotApplicable(_))));
    }
}
