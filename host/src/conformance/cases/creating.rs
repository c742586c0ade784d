//! `create`.

use serde_json::Value;

use crate::conformance::kit::{Kit, Step, ensure, fail, failed, forgotten, learn, not_applicable, told};
use crate::conformance::observer::{Plan, line};
use crate::model::error::{CallError, ErrorKind};
use crate::model::instance::{Identity, Instance, ONE_PER_PLACE, Presence, Request, State};
use crate::plugin::handle::Handle;
use crate::plugin::intercept::Asked;

/// Changes of one create that are broken one after the other.
pub const CHANGES: usize = 12;
/// Calls of `create` until the change that is to be broken was sent.
const CALLS: usize = 30;
/// How often one call may ask the same before it counts as waiting.
const SAME_QUESTIONS: usize = 5;

pub async fn reaches_running(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (_, made) = kit.running(&handle).await?;
    ensure!(!made.provider_id.is_empty(), "a running instance has no provider-id");
    ensure!(!made.addresses.is_empty(), "a running instance has no address");
    ensure!(made.addresses.iter().all(|a| !a.host.is_empty()), "an address is empty");
    Ok(())
}

/// The one instance of a proxy: by the listing, and the same as `made`.
async fn one(kit: &Kit, handle: &Handle, request: &Request, made: &Instance) -> Step {
    if kit.makes().is_err() {
        return Ok(());
    }
    let listed = kit.listed(handle, &request.identity).await?;
    ensure!(listed.len() <= 1, "there are {} instances of one proxy", listed.len());
    if let Some(found) = listed.first() {
        same(found, made)?;
    }
    Ok(())
}

fn same(a: &Instance, b: &Instance) -> Step {
    let ids = |one: &Instance| (one.provider_id.clone(), one.backend_id.clone());
    ensure!(ids(a) == ids(b), "there are two instances of one proxy: {:?} and {:?}", ids(a), ids(b));
    Ok(())
}

pub async fn repeated(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let (mut request, made) = kit.running(&handle).await?;
    for _ in 0..2 {
        same(&handle.create(&request).await.map_err(failed("create"))?, &made)?;
    }
    request.identity = forgotten(&request.identity);
    same(&handle.create(&request).await.map_err(failed("create"))?, &made)?;
    one(kit, &handle, &request, &made).await
}

pub async fn twice_at_once(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let mut request = kit.placed(&handle).await?;
    let (a, b) = tokio::join!(handle.create(&request), handle.create(&request));
    for answer in [a, b] {
        match answer {
            Ok(_) => {}
            // One may be told that the other is at it.
            Err(error) if matches!(error.kind, ErrorKind::Transient | ErrorKind::UnknownOutcome) => {}
            Err(error) => fail!("one of two creates failed with {}", told(&error)),
        }
    }
    let made = kit.drive(&handle, &mut request).await?;
    one(kit, &handle, &request, &made).await
}

/// Calls `create` until the change that the plan names was sent; what that call came to. None: there is no such change.
pub async fn strike(
    kit: &Kit,
    handle: &Handle,
    request: &mut Request,
    plan: Plan,
) -> Option<Result<Instance, CallError>> {
    kit.observer.plan(plan);
    for _ in 0..CALLS {
        let answer = handle.create(request).await;
        if kit.observer.struck() > 0 {
            return Some(answer);
        }
        match answer {
            Ok(made) => {
                learn(&mut request.identity, &made);
                if matches!(made.state, State::Running | State::Failed(_)) {
                    return None;
                }
            }
            Err(_) => return None,
        }
    }
    None
}

pub async fn answer_lost(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    for change in 0..CHANGES {
        let mut request = kit.placed(&handle).await?;
        let struck = strike(kit, &handle, &mut request, Plan::Lose { change, cut: false }).await;
        let lost = kit.observer.changes().get(change).cloned();
        kit.observer.plan(Plan::Nothing);
        let (Some(answer), Some(lost)) = (struck, lost) else {
            ensure!(change > 0, "create sent no change");
            break;
        };
        match answer {
            // It looked for itself.
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::UnknownOutcome || matches!(lost, Asked::Ssh { .. }) => {}
            Err(error) => fail!("the answer to {} was lost, and create answered {}", line(&lost), told(&error)),
        }
        let made = kit.drive(&handle, &mut request).await?;
        one(kit, &handle, &request, &made).await?;
    }
    Ok(())
}

pub async fn tags_first(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let mut request = kit.placed(&handle).await?;
    let struck = strike(kit, &handle, &mut request, Plan::Lose { change: 0, cut: true }).await;
    let first = kit.observer.changes().first().cloned();
    kit.observer.plan(Plan::Nothing);
    let (Some(_), Some(first)) = (struck, first) else { fail!("create sent no change") };
    let identity = forgotten(&request.identity);
    let there = match kit.held() {
        Some(held) => held > 0,
        None => matches!(handle.get(&identity).await.map_err(failed("get"))?, Presence::Present(_)),
    };
    if !there {
        return Ok(());
    }
    ensure!(
        !kit.listed(&handle, &identity).await?.is_empty(),
        "a crash after {} leaves something that list-instances does not show with its owner's UID",
        line(&first)
    );
    Ok(())
}

pub async fn at_its_placement(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let first = kit.placed(&handle).await?;
    let mut request = kit.proxy();
    let elsewhere = match handle.place(&request, std::slice::from_ref(&first.identity.placement)).await {
        Ok(elsewhere) => elsewhere,
        Err(error) if error.kind == ErrorKind::Exhausted => {
            return not_at_another(kit, &handle, request, &first.identity.placement).await;
        }
        Err(error) => return Err(failed("place")(error)),
    };
    request.identity.placement = elsewhere.clone();
    kit.remember(&request.identity);
    kit.drive(&handle, &mut request).await?;
    for found in kit.listed(&handle, &request.identity).await? {
        ensure!(found.placement == elsewhere, "placed at {elsewhere}, it was made at {}", found.placement);
    }
    not_at_another(kit, &handle, kit.proxy(), &first.identity.placement).await
}

/// At a placement of another backend nothing is made.
async fn not_at_another(kit: &Kit, handle: &Handle, mut request: Request, placement: &str) -> Step {
    let Some(other) = other_backend(placement) else { return Ok(()) };
    request.identity.placement = other.clone();
    let held = kit.held();
    match handle.create(&request).await {
        Err(error) if error.kind == ErrorKind::ConfigMissing => {}
        Err(error) => fail!("at {other}, which is another backend, create failed with {}", told(&error)),
        Ok(made) => fail!("at {other}, which is another backend, create made {}", made.provider_id),
    }
    ensure!(kit.held() == held, "at {other}, which is another backend, something was made");
    Ok(())
}

/// The identity as if another backend were at its placement, and nothing more were known of it.
pub fn elsewhere(identity: &Identity) -> Step<Identity> {
    let identity = forgotten(identity);
    let Some(placement) = other_backend(&identity.placement) else {
        fail!("the placement {:?} names no backend behind an '@'", identity.placement)
    };
    Ok(Identity { placement, ..identity })
}

/// A placement of the same form at a backend that is not there: one character behind the first `@` differs.
fn other_backend(placement: &str) -> Option<String> {
    let (place, identity) = placement.split_once('@')?;
    let at = identity.rfind(|c: char| c.is_ascii_alphanumeric())?;
    let other = if identity[at..].starts_with('0') { "1" } else { "0" };
    Some(format!("{place}@{}{other}{}", &identity[..at], &identity[at + 1..]))
}

/// Tags of an owner that is not ours, in the place of ours.
pub fn somebody_else(request: &Request) -> Vec<(String, String)> {
    let owner = &request.identity.owner;
    // As long and of the same form: a plugin that reads them back must not stumble.
    let uid: String = owner.proxy_uid.chars().map(|c| if c.is_ascii_hexdigit() { 'e' } else { c }).collect();
    let installation = format!("not-{}", &owner.installation[4..]);
    vec![(owner.installation.clone(), installation), (owner.proxy_uid.clone(), uid)]
}

pub async fn foreign(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    if kit.servers.is_empty() {
        not_applicable!("a name is taken in scripted backends only: give --script");
    }
    let (mut request, _) = kit.running(&handle).await?;
    let held = kit.held();
    kit.servers.iter().for_each(|server| server.rewrite(&somebody_else(&request)));
    request.identity = forgotten(&request.identity);
    match handle.create(&request).await {
        Err(error) if error.kind == ErrorKind::Foreign => {}
        Err(error) => fail!("its name is taken by somebody else, and create failed with {}", told(&error)),
        Ok(made) => fail!("its name is taken by somebody else, and create answered {}", made.provider_id),
    }
    ensure!(kit.held() == held, "its name is taken by somebody else, and something was made or removed");
    Ok(())
}

pub async fn does_not_wait(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let mut request = kit.placed(&handle).await?;
    kit.servers.iter().for_each(|server| server.freeze(true));
    kit.observer.plan(Plan::Nothing);
    let made = handle.create(&request).await;
    quick(kit, "create")?;
    kit.servers.iter().for_each(|server| server.freeze(false));
    learn(&mut request.identity, &made.map_err(failed("create"))?);
    kit.drive(&handle, &mut request).await?;
    kit.servers.iter().for_each(|server| server.freeze(true));
    kit.observer.plan(Plan::Nothing);
    let deletion = handle.delete(&request.identity).await;
    quick(kit, "delete")?;
    kit.servers.iter().for_each(|server| server.freeze(false));
    deletion.map(drop).map_err(failed("delete"))
}

/// One call did not ask the same thing again and again.
fn quick(kit: &Kit, function: &str) -> Step {
    let calls = kit.observer.calls();
    for (_, asked) in &calls {
        let times = calls.iter().filter(|(_, other)| other == asked).count();
        ensure!(times <= SAME_QUESTIONS, "one {function} asked {times} times for {}: it waits", line(asked));
    }
    Ok(())
}

pub async fn names_from_identity(kit: &Kit) -> Step {
    kit.over_http()?;
    let handle = kit.handle()?;
    let request = kit.placed(&handle).await?;
    let mut firsts = vec![];
    for _ in 0..2 {
        // The same identity, each time with nothing there.
        let mut again = request.clone();
        kit.observer.plan(Plan::Nothing);
        handle.create(&again).await.map_err(failed("create"))?;
        let Some(first) = kit.observer.changes().first().map(names) else { fail!("create sent no change") };
        firsts.push(first);
        kit.observer.plan(Plan::Nothing);
        kit.drive(&handle, &mut again).await?;
        kit.gone(&handle, &again.identity).await?;
    }
    ensure!(firsts[0] == firsts[1], "the same create named things otherwise: {:?}, then {:?}", firsts[0], firsts[1]);
    Ok(())
}

/// What names things in a request: its path and query, and what is called a name or an id in headers and body.
fn names(asked: &Asked) -> Vec<String> {
    let Asked::Http { path, query, headers, body, .. } = asked else { return vec![] };
    let mut found = vec![path.clone()];
    found.extend(query.iter().map(|(name, value)| format!("{name}={value}")));
    found.extend(headers.iter().filter(|(name, _)| is_name(name)).map(|(name, value)| format!("{name}: {value}")));
    if let Ok(body) = serde_json::from_slice(body) {
        names_in(&body, &mut found);
    }
    found
}

fn is_name(field: &str) -> bool {
    let field = field.to_ascii_lowercase();
    ["name", "id", "key", "token"].iter().any(|end| field.ends_with(end))
}

fn names_in(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if is_name(name) && !name.to_ascii_lowercase().contains("user") => {
                        found.push(format!("{name}={text}"));
                    }
                    _ => names_in(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names_in(item, found)),
        _ => {}
    }
}

pub async fn incarnations_differ(kit: &Kit) -> Step {
    kit.makes()?;
    let handle = kit.handle()?;
    let (request, first) = kit.running(&handle).await?;
    let plugin = &kit.subject.plugin.description;
    if plugin.has(ONE_PER_PLACE) || plugin.has("static-address") {
        // There the operator has the old one gone before it makes the new one.
        kit.gone(&handle, &request.identity).await?;
    }
    let mut next = request.clone();
    next.identity = forgotten(&next.identity);
    next.identity.incarnation = 1;
    kit.remember(&next.identity);
    let second = kit.drive(&handle, &mut next).await?;
    ensure!(first.provider_id != second.provider_id, "two incarnations are one instance, {}", first.provider_id);
    let (_, other) = kit.running(&handle).await?;
    ensure!(first.provider_id != other.provider_id, "two proxies are one instance, {}", first.provider_id);
    Ok(())
}
