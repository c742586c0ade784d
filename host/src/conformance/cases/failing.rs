//! A backend that cannot be asked.

use std::time::Duration;

use crate::conformance::kit::{Kit, Otherwise, Step, ensure, fail, told};
use crate::conformance::observer::Plan;
use crate::model::error::{CallError, ErrorKind};
use crate::model::instance::{Identity, Request};
use crate::plugin::handle::Handle;

/// What each function that asks the backend answered, in words where it is no error.
async fn answers(handle: &Handle, request: &Request) -> Vec<(&'static str, Result<String, CallError>)> {
    let identity: &Identity = &request.identity;
    vec![
        ("get", handle.get(identity).await.map(|presence| crate::conformance::kit::word(&presence))),
        ("delete", handle.delete(identity).await.map(|deletion| format!("{deletion:?}"))),
        ("list-instances", handle.list().await.map(|all| format!("{} instances", all.len()))),
        ("create", handle.create(request).await.map(|made| made.provider_id)),
        ("place", handle.place(request, &[]).await),
    ]
}

pub async fn unreachable(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    kit.observer.plan(Plan::Unreachable);
    for (function, answer) in answers(&handle, &request).await {
        match answer {
            Err(error) if error.kind == ErrorKind::Transient => {}
            // What needs no look at the backend may be answered.
            Ok(_) if function == "place" => {}
            Err(error) => fail!("nobody listens, and {function} failed with {}", told(&error)),
            Ok(answer) => fail!("nobody listens, and {function} answered {answer}"),
        }
    }
    match handle.check().await {
        Err(error) => {
            ensure!(error.kind == ErrorKind::Transient, "nobody listens, and check failed with {}", told(&error))
        }
        Ok(findings) => {
            let healthy = findings.iter().filter(|finding| finding.healthy).count();
            ensure!(healthy == 0, "nobody listens, and check finds {healthy} healthy targets");
        }
    }
    Ok(())
}

pub async fn refuses(kit: &Kit) -> Step {
    kit.over_http()?;
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    let cases = [
        (401, ErrorKind::Unauthorized),
        (429, ErrorKind::RateLimited(Some(Duration::from_secs(7)))),
        (503, ErrorKind::Transient),
    ];
    for (status, kind) in cases {
        kit.observer.plan(Plan::Status(status, vec![("retry-after".into(), "7".into())]));
        for (function, answer) in answers(&handle, &request).await {
            match answer {
                Err(error) if error.kind == kind => {}
                Ok(_) if function == "place" => {}
                Err(error) => fail!("the backend answered {status}, and {function} failed with {}", told(&error)),
                Ok(answer) => fail!("the backend answered {status}, and {function} answered {answer}"),
            }
        }
    }
    Ok(())
}

pub async fn connection_missing(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    let poor = kit.handle_otherwise(Otherwise { nothing_granted: true, ..Otherwise::default() })?;
    for (function, answer) in answers(&poor, &request).await {
        match answer {
            Err(error) if error.kind == ErrorKind::ConfigMissing => {}
            Ok(_) if function == "place" => {}
            Err(error) => fail!("no connection is granted, and {function} failed with {}", told(&error)),
            Ok(answer) => fail!("no connection is granted, and {function} answered {answer}"),
        }
    }
    Ok(())
}
