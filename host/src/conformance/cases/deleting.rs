//! `delete`.

use super::creating::{CHANGES, elsewhere, somebody_else};
use crate::conformance::kit::{
    Kit, Otherwise, Step, ensure, fail, failed, forgotten, learn, not_applicable, told, word,
};
use crate::conformance::observer::{Plan, line};
use crate::model::error::ErrorKind;
use crate::model::instance::{Deletion, Identity, Presence};
use crate::plugin::handle::Handle;

/// After `gone`, nothing is there: by get, and in a scripted backend by itself.
async fn nothing_there(kit: &Kit, handle: &Handle, identity: &Identity) -> Step {
    if let Some(held) = kit.held() {
        ensure!(held == 0, "delete answered gone, and the backend holds {held} things");
    }
    match handle.get(identity).await.map_err(failed("get"))? {
        Presence::Absent => Ok(()),
        present => fail!("delete answered gone, and get answers {}", word(&present)),
    }
}

pub async fn until_gone(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    kit.gone(&handle, &request.identity).await?;
    nothing_there(kit, &handle, &request.identity).await?;
    let listed = kit.listed(&handle, &request.identity).await?;
    ensure!(listed.is_empty(), "delete answered gone, and list-instances shows it");
    Ok(())
}

pub async fn twice(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    let (a, b) = tokio::join!(handle.delete(&request.identity), handle.delete(&request.identity));
    for answer in [a, b] {
        match answer {
            Ok(_) => {}
            Err(error) if matches!(error.kind, ErrorKind::Transient | ErrorKind::UnknownOutcome) => {}
            Err(error) => fail!("one of two deletes failed with {}", told(&error)),
        }
    }
    kit.gone(&handle, &request.identity).await?;
    for identity in [request.identity.clone(), forgotten(&request.identity)] {
        match handle.delete(&identity).await.map_err(failed("delete"))? {
            Deletion::Gone => {}
            Deletion::InProgress { .. } => fail!("what is gone already is in progress again"),
        }
    }
    Ok(())
}

pub async fn while_creating(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let mut request = kit.placed(&handle).await?;
    let made = handle.create(&request).await.map_err(failed("create"))?;
    learn(&mut request.identity, &made);
    kit.gone(&handle, &request.identity).await?;
    nothing_there(kit, &handle, &request.identity).await
}

pub async fn answer_lost(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    for change in 0..CHANGES {
        let (request, _) = kit.running(&handle).await?;
        kit.observer.plan(Plan::Lose { change, cut: false });
        let mut calls = 0;
        let struck = loop {
            let answer = handle.delete(&request.identity).await;
            calls += 1;
            if kit.observer.struck() > 0 {
                break Some(answer);
            }
            if matches!(answer, Ok(Deletion::Gone) | Err(_)) || calls > 100 {
                break None;
            }
        };
        let lost = kit.observer.changes().get(change).cloned();
        kit.observer.plan(Plan::Nothing);
        let (Some(answer), Some(lost)) = (struck, lost) else {
            ensure!(change > 0, "delete sent no change");
            break;
        };
        match answer {
            Ok(Deletion::InProgress { .. }) => {}
            Ok(Deletion::Gone) => {
                // It may have looked; then nothing is there.
                nothing_there(kit, &handle, &request.identity).await?;
            }
            Err(error) if matches!(error.kind, ErrorKind::UnknownOutcome | ErrorKind::Transient) => {}
            Err(error) => fail!("the answer to {} was lost, and delete answered {}", line(&lost), told(&error)),
        }
        kit.gone(&handle, &request.identity).await?;
    }
    Ok(())
}

pub async fn foreign(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, made) = kit.running(&handle).await?;
    kit.observer.plan(Plan::Replace(somebody_else(&request)));
    let answer = handle.delete(&forgotten(&request.identity)).await;
    let (struck, changes) = (kit.observer.struck(), kit.observer.changes());
    kit.observer.plan(Plan::Nothing);
    if struck == 0 && changes.is_empty() {
        not_applicable!("the owner tags stand as text in no answer to delete");
    }
    match answer {
        Err(error) if error.kind == ErrorKind::Foreign => {}
        Err(error) => fail!("it carries somebody else's tags, and delete failed with {}", told(&error)),
        Ok(deletion) => fail!("it carries somebody else's tags, and delete answered {deletion:?}"),
    }
    match handle.get(&request.identity).await.map_err(failed("get"))? {
        Presence::Present(found) if found.provider_id == made.provider_id && found.state == made.state => Ok(()),
        other => fail!("it carried somebody else's tags, and after delete it is {}", word(&other)),
    }
}

pub async fn other_backend(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    let identity = elsewhere(&request.identity)?;
    let other = &identity.placement;
    match handle.delete(&identity).await {
        Err(error) if error.kind == ErrorKind::ConfigMissing => Ok(()),
        Err(error) => fail!("at {other}, which is another backend, delete failed with {}", told(&error)),
        Ok(deletion) => fail!("at {other}, which is another backend, delete answered {deletion:?}"),
    }
}

pub async fn identity_only(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    let Some(config) = kit.smaller_config() else {
        not_applicable!("its config-schema requires all that the config holds, or all of it leads to connections");
    };
    let changed = kit.handle_otherwise(Otherwise { config: Some(config), ..Otherwise::default() })?;
    kit.gone(&changed, &request.identity).await?;
    nothing_there(kit, &handle, &request.identity).await
}
