//! `list-instances`.

use crate::conformance::kit::{Kit, Otherwise, Step, ensure, fail, failed, told};
use crate::conformance::observer::{Plan, line};
use crate::model::error::ErrorKind;
use crate::model::instance::Presence;

/// Instances that are made to be listed. A script's pages may be smaller.
const INSTANCES: u32 = 3;
/// Host calls of a listing that are broken one after the other.
const CALLS: usize = 12;

pub async fn complete(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let mut made = vec![];
    for incarnation in 0..INSTANCES {
        let mut request = kit.proxy();
        request.identity.incarnation = incarnation;
        kit.place(&handle, &mut request).await?;
        kit.drive(&handle, &mut request).await?;
        made.push(request.identity);
    }
    let all = handle.list().await.map_err(failed("list-instances"))?;
    for wanted in &made {
        let ours = all.iter().filter(|one| {
            one.owner.as_ref().is_some_and(|owner| {
                owner.proxy_uid == wanted.owner.proxy_uid && owner.installation == wanted.owner.installation
            })
        });
        let found: Vec<_> = ours.collect();
        let [found] = found[..] else {
            fail!(
                "{} instances run, and of the one of incarnation {} list-instances shows {}",
                made.len(),
                wanted.incarnation,
                found.len()
            )
        };
        ensure!(
            found.placement == wanted.placement,
            "an instance at {} is listed at {}",
            wanted.placement,
            found.placement
        );
        ensure!(
            found.incarnation == Some(wanted.incarnation),
            "an instance of incarnation {} is listed as {:?}",
            wanted.incarnation,
            found.incarnation
        );
    }
    ensure!(all.len() == made.len(), "{} instances run, and list-instances shows {}", made.len(), all.len());
    Ok(())
}

pub async fn own_installation(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, made) = kit.running(&handle).await?;
    let other = format!("not-{}", &kit.installation[4..]);
    let theirs = kit.handle_otherwise(Otherwise { installation: Some(&other), ..Otherwise::default() })?;
    let listed = theirs.list().await.map_err(failed("list-instances"))?;
    ensure!(listed.is_empty(), "another installation is shown {} of our instances", listed.len());
    // The same proxy, as another cluster would have it.
    let mut identity = crate::conformance::kit::forgotten(&request.identity);
    identity.owner.installation = other;
    match theirs.delete(&identity).await {
        Ok(_) => {}
        Err(error) if error.kind == ErrorKind::Foreign => {}
        Err(error) => fail!("delete for another installation failed with {}", told(&error)),
    }
    match handle.get(&request.identity).await.map_err(failed("get"))? {
        Presence::Present(found) if found.provider_id == made.provider_id && found.state == made.state => Ok(()),
        _ => fail!("another installation deleted {}", made.provider_id),
    }
}

pub async fn whole_or_error(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    for _ in 0..INSTANCES {
        kit.running(&handle).await?;
    }
    for call in 0..CALLS {
        kit.observer.plan(Plan::Fail(call));
        let answer = handle.list().await;
        let (struck, calls) = (kit.observer.struck(), kit.observer.calls());
        kit.observer.plan(Plan::Nothing);
        if struck == 0 {
            break;
        }
        if let Ok(all) = answer {
            let failed = calls.get(call).map(|(_, asked)| line(asked)).unwrap_or_default();
            // It may have asked again; then nothing is missing.
            ensure!(
                all.len() == INSTANCES as usize,
                "{failed} failed, and list-instances answered {} of {INSTANCES} instances",
                all.len()
            );
        }
    }
    Ok(())
}
