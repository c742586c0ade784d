//! `get`.

use super::creating::{CHANGES, elsewhere, somebody_else, strike};
use crate::conformance::kit::{Kit, Otherwise, Step, ensure, fail, failed, forgotten, not_applicable, told, word};
use crate::conformance::observer::{Plan, UNHEARD_OF, is_write, line};
use crate::model::error::ErrorKind;
use crate::model::instance::{Deletion, Instance, Presence, State};
use crate::plugin::intercept::Asked;

pub async fn absent_before_create(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let request = kit.placed(&handle).await?;
    match handle.get(&request.identity).await.map_err(failed("get"))? {
        Presence::Absent => Ok(()),
        Presence::Present(instance) => fail!("before any create, get shows {}", instance.provider_id),
    }
}

pub async fn changes_nothing(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (request, made) = kit.running(&handle).await?;
    kit.observer.plan(Plan::Nothing);
    for _ in 0..2 {
        handle.get(&request.identity).await.map_err(failed("get"))?;
    }
    if let Some(asked) = kit.observer.changes().iter().find(|asked| is_write(asked)) {
        fail!("get sent {}", line(asked));
    }
    match handle.get(&request.identity).await.map_err(failed("get"))? {
        Presence::Present(found) => {
            ensure!(
                found.provider_id == made.provider_id && found.state == State::Running,
                "after two gets {} is {} as {}",
                made.provider_id,
                found.state,
                found.provider_id
            );
            Ok(())
        }
        Presence::Absent => fail!("after two gets {} is absent", made.provider_id),
    }
}

pub async fn other_backend(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    let identity = elsewhere(&request.identity)?;
    let other = &identity.placement;
    match handle.get(&identity).await {
        Err(error) if error.kind == ErrorKind::ConfigMissing => Ok(()),
        Err(error) => fail!("at {other}, which is another backend, get failed with {}", told(&error)),
        Ok(presence) => fail!("at {other}, which is another backend, get answered {}", word(&presence)),
    }
}

pub async fn foreign(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    kit.observer.plan(Plan::Replace(somebody_else(&request)));
    let answer = handle.get(&forgotten(&request.identity)).await;
    let struck = kit.observer.struck();
    kit.observer.plan(Plan::Nothing);
    if struck == 0 {
        not_applicable!("the owner tags stand as text in no answer to get");
    }
    match answer {
        Err(error) if error.kind == ErrorKind::Foreign => Ok(()),
        Err(error) => fail!("it carries somebody else's tags, and get failed with {}", told(&error)),
        Ok(presence) => fail!("it carries somebody else's tags, and get answered {}", word(&presence)),
    }
}

pub async fn after_config_change(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (request, made) = kit.running(&handle).await?;
    let Some(config) = kit.smaller_config() else {
        not_applicable!("its config-schema requires all that the config holds, or all of it leads to connections");
    };
    let changed = kit.handle_otherwise(Otherwise { config: Some(config), ..Otherwise::default() })?;
    match changed.get(&request.identity).await.map_err(failed("get"))? {
        Presence::Present(found) if found.provider_id == made.provider_id => Ok(()),
        other => fail!("without the optional part of the config, get answered {}", word(&other)),
    }
}

pub async fn continuation_lost(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    let whole = handle.get(&request.identity).await.map_err(failed("get"))?;
    let lost = handle.get(&forgotten(&request.identity)).await.map_err(failed("get"))?;
    let shown = |presence: &Presence| match presence {
        Presence::Present(i) => format!("{} {:?} {}", i.provider_id, i.backend_id, i.state),
        Presence::Absent => "absent".into(),
    };
    ensure!(
        shown(&whole) == shown(&lost),
        "get answered {} with and {} without continuation, provider-id and backend-id",
        shown(&whole),
        shown(&lost)
    );
    Ok(())
}

pub async fn unknown_state(kit: &Kit) -> Step {
    kit.over_http()?;
    let handle = kit.handle()?;
    let (request, _) = kit.running(&handle).await?;
    kit.observer.plan(Plan::UnknownState);
    let answer = handle.get(&request.identity).await;
    let struck = kit.observer.struck();
    kit.observer.plan(Plan::Nothing);
    if struck == 0 {
        not_applicable!("no field called state, status or phase stands in the answers to get");
    }
    match answer {
        Ok(Presence::Present(found)) => match &found.state {
            State::Unknown(_) => Ok(()),
            state => fail!("the backend says {UNHEARD_OF}, and get answered {state}"),
        },
        Ok(Presence::Absent) => fail!("the backend says {UNHEARD_OF}, and get answered absent"),
        // An answer that makes no sense as a whole may be an error.
        Err(_) => Ok(()),
    }
}

pub async fn leftovers_are_present(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    // What a create leaves that ends after each of its changes.
    for change in 0..CHANGES {
        let mut request = kit.placed(&handle).await?;
        let struck = strike(kit, &handle, &mut request, Plan::Lose { change, cut: true }).await;
        kit.observer.plan(Plan::Nothing);
        if struck.is_none() {
            kit.gone(&handle, &request.identity).await?;
            break;
        }
        absent_is_nothing(kit, &request.identity, &format!("change {} of create", change + 1)).await?;
    }
    // And a delete.
    for change in 0..CHANGES {
        let (request, _) = kit.running(&handle).await?;
        kit.observer.plan(Plan::Lose { change, cut: true });
        while kit.observer.struck() == 0
            && !matches!(handle.delete(&request.identity).await, Ok(Deletion::Gone) | Err(_))
        {}
        let struck = kit.observer.struck();
        kit.observer.plan(Plan::Nothing);
        if struck == 0 {
            kit.gone(&handle, &request.identity).await?;
            break;
        }
        absent_is_nothing(kit, &request.identity, &format!("change {} of delete", change + 1)).await?;
    }
    Ok(())
}

/// Where get says absent, delete has nothing to do.
async fn absent_is_nothing(kit: &Kit, identity: &crate::model::instance::Identity, after: &str) -> Step {
    let handle = kit.handle()?;
    let identity = forgotten(identity);
    if handle.get(&identity).await.map_err(failed("get"))? == Presence::Absent {
        kit.observer.plan(Plan::Nothing);
        handle.delete(&identity).await.map_err(failed("delete"))?;
        let http = |asked: &&Asked| matches!(asked, Asked::Http { .. });
        if let Some(asked) = kit.observer.changes().iter().find(http) {
            fail!("after a crash at {after} get answered absent, and delete still sent {}", line(asked));
        }
    }
    kit.gone(&handle, &identity).await?;
    if let Some(held) = kit.held() {
        ensure!(held == 0, "after a crash at {after} delete answered gone, and the backend holds {held} things");
    }
    Ok(())
}

/// An instance without the hint when to ask again.
pub fn plain(mut instance: Instance) -> Instance {
    instance.poll_after = None;
    instance
}
