//! `describe` and `validate`.

use serde_json::{Map, Value, json};

use crate::conformance::kit::{End, Kit, Step, ensure, fail, failed, not_applicable};
use crate::conformance::observer::{Plan, line};
use crate::model::error::{FieldError, list_fields};
use crate::model::instance::{Request, check_schema};
use crate::model::naming::is_label;
use crate::plugin::handle::Handle;
use crate::plugin::intercept::Noted;

/// A name that stands in no catalogue.
const NO_SUCH: &str = "kit-no-such-name";

pub async fn describe_pure(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    kit.observer.plan(Plan::Nothing);
    for _ in 0..3 {
        let said = handle.describe().await.map_err(failed("describe"))?;
        ensure!(
            said == kit.subject.plugin.description,
            "it described itself otherwise than when it was loaded: {said:?}"
        );
    }
    pure(kit, "describe")
}

/// Nothing but log lines left the guest since the last plan.
fn pure(kit: &Kit, function: &str) -> Step {
    if let Some((_, asked)) = kit.observer.calls().first() {
        fail!("{function} asked for {}", line(asked));
    }
    // What a runtime draws at its start does not show in an answer that is the same each time.
    let aside = |noted: &Noted| matches!(noted, Noted::Log(_) | Noted::WasiRandom(_));
    match kit.observer.notes().into_iter().find(|(_, noted)| !aside(noted)) {
        None => Ok(()),
        Some((_, Noted::Secret(name))) => fail!("{function} asked for the secret {name}"),
        Some((_, Noted::Clock)) => fail!("{function} asked for the time"),
        Some(_) => fail!("{function} asked for random bytes"),
    }
}

pub async fn describe_names(kit: &Kit) -> Step {
    let said = &kit.subject.plugin.description;
    ensure!(is_label(&said.name), "its name {:?} is no DNS-1123 label", said.name);
    ensure!(is_semver(&said.version), "its version {:?} is not MAJOR.MINOR.PATCH", said.version);
    ensure!(!said.summary.trim().is_empty() && !said.summary.contains('\n'), "its summary is not one line");
    for need in &said.connections {
        ensure!(is_label(&need.name), "connection {:?} is no DNS-1123 label", need.name);
        ensure!(matches!(need.kind.as_str(), "ssh" | "http"), "connection {} is of kind {:?}", need.name, need.kind);
        ensure!(!need.doc.trim().is_empty(), "connection {} does not say what it is for", need.name);
    }
    for pointer in &said.connection_pointers {
        ensure!(pointer.starts_with('/'), "the connection pointer {pointer:?} does not begin with '/'");
    }
    Ok(())
}

fn is_semver(version: &str) -> bool {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    core.split('.').count() == 3 && core.split('.').all(|part| part.parse::<u64>().is_ok())
}

pub async fn describe_schemas(kit: &Kit) -> Step {
    let plugin = &kit.subject.plugin.description;
    let parameters = &kit.subject.proxy.parameters;
    for (root, schema, value) in [
        ("/config", &plugin.config_schema, &kit.subject.provider.spec.config),
        ("/parameters", &plugin.parameters_schema, parameters),
    ] {
        let mut more: Map<String, Value> = value.clone();
        more.insert("kitNoSuchField".into(), json!(true));
        ensure!(
            check_schema(schema, &Value::Object(more), root).is_err(),
            "the schema of {root} accepts a field that nothing reads (kitNoSuchField); set additionalProperties to false"
        );
    }
    Ok(())
}

pub async fn validate_pure(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let mut wrong = kit.proxy();
    FIELDS.iter().for_each(|field| spoil(&mut wrong, field));
    kit.observer.plan(Plan::Nothing);
    for request in [None, Some(&kit.proxy()), Some(&wrong)] {
        let first = handle.validate(request).await.map_err(failed("validate"))?;
        let second = handle.validate(request).await.map_err(failed("validate"))?;
        ensure!(first == second, "asked twice, it answered {first:?} and then {second:?}");
    }
    pure(kit, "validate")
}

pub async fn validate_accepts(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    for request in [None, Some(&kit.proxy())] {
        if let Err(errors) = handle.validate(request).await.map_err(failed("validate"))? {
            let what = if request.is_some() { "the request" } else { "the config" };
            fail!("it refuses {what}: {}; correct the manifests, or the plugin", list_fields(&errors));
        }
    }
    Ok(())
}

/// Fields of a request that can be wrong.
const FIELDS: [&str; 5] = ["/location", "/image", "/size", "/protocol", "/parameters"];

fn spoil(request: &mut Request, field: &str) {
    match field {
        "/location" => request.location = Some(NO_SUCH.into()),
        "/image" => request.image = Some(NO_SUCH.into()),
        "/size" => request.size = Some(NO_SUCH.into()),
        "/protocol" => request.protocol = "gopher",
        _ => request.parameters = json!({"kitNoSuchField": true}),
    }
}

/// Every error of `validate`, each of which leads to a field and says something.
async fn refusals(handle: &Handle, request: &Request) -> Step<Vec<FieldError>> {
    const KNOWN: [&str; 8] = ["/config", "/parameters", "/location", "/image", "/size", "/protocol", "/port", "/auth"];
    let verdict = handle.validate(Some(request)).await.map_err(failed("validate"))?;
    let errors = verdict.err().unwrap_or_default();
    for error in &errors {
        let below = |root: &&str| error.pointer.strip_prefix(*root).is_some_and(|r| r.is_empty() || r.starts_with('/'));
        ensure!(KNOWN.iter().any(below), "the pointer {:?} leads to no field", error.pointer);
        ensure!(!error.message.trim().is_empty(), "the error at {} says nothing", error.pointer);
    }
    Ok(errors)
}

pub async fn validate_every_field(kit: &Kit) -> Step {
    let handle = kit.handle()?;
    let mut refused = vec![];
    for field in FIELDS {
        let mut request = kit.proxy();
        spoil(&mut request, field);
        if refusals(&handle, &request).await?.iter().any(|error| error.pointer.starts_with(field)) {
            refused.push(field);
        }
    }
    if refused.is_empty() {
        not_applicable!("it refuses no image, size, location, protocol or parameter by itself");
    }
    let mut request = kit.proxy();
    refused.iter().for_each(|field| spoil(&mut request, field));
    let errors = refusals(&handle, &request).await?;
    match refused.iter().find(|field| !errors.iter().any(|error| error.pointer.starts_with(**field))) {
        None => Ok(()),
        Some(field) => Err(End::Failed(format!(
            "alone a wrong {field} is refused; beside other wrong fields it is not named ({})",
            list_fields(&errors)
        ))),
    }
}
