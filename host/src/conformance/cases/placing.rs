//! `place`.

use crate::conformance::kit::{Kit, Step, ensure, fail, failed, told};
use crate::conformance::observer::{Plan, is_write, line};
use crate::model::error::ErrorKind;
use crate::model::instance::Presence;

/// More places than this are not tried.
const PLACES: usize = 64;

pub async fn place_reads_only(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    kit.observer.plan(Plan::Nothing);
    let request = kit.placed(&handle).await?;
    if let Some(asked) = kit.observer.changes().iter().find(|asked| is_write(asked)) {
        fail!("place sent {}", line(asked));
    }
    if let Some(held) = kit.held() {
        ensure!(held == 0, "after place the backend holds {held} things");
    }
    match handle.get(&request.identity).await.map_err(failed("get"))? {
        Presence::Absent => Ok(()),
        Presence::Present(instance) => fail!("after place alone, get shows {}", instance.provider_id),
    }
}

pub async fn place_names_the_backend(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let placement = kit.placed(&handle).await?.identity.placement;
    match placement.split_once('@') {
        Some((place, identity)) if !place.is_empty() && !identity.is_empty() => Ok(()),
        _ => fail!("the placement is {placement:?}"),
    }
}

pub async fn place_respects_avoid(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (request, mut avoid) = (kit.proxy(), vec![]);
    while avoid.len() < PLACES {
        match handle.place(&request, &avoid).await {
            Ok(place) => {
                ensure!(!avoid.contains(&place), "it answered {place:?}, which stands in avoid");
                avoid.push(place);
            }
            Err(error) if error.kind == ErrorKind::Exhausted => {
                ensure!(!avoid.is_empty(), "with nothing to avoid it is exhausted: {}", error.message);
                return Ok(());
            }
            Err(error) => fail!("with {} places avoided it answered {}", avoid.len(), told(&error)),
        }
    }
    Ok(())
}
