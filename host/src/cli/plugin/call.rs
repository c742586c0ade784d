//! `plugin call`: one function of a plugin, as the operator calls it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::bench::{Bench, BenchArgs};
use super::show;
use crate::model::clock::SystemClock;
use crate::model::error::{CallError, ErrorKind, list_fields};
use crate::model::instance::{Identity, Owner, Request, check_schema};
use crate::model::login::{Login, LoginKey};
use crate::model::proxy::{AuthMode, Protocol, ProxySpec};
use crate::plugin::grants::Grants;
use crate::plugin::handle::{Handle, Shared};

/// A function of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Function {
    /// What the plugin is
    Describe,
    /// Would this config, and this request, be accepted?
    Validate,
    /// Where to make it
    Place,
    /// Make it, or drive it on
    Create,
    /// Whether it is there
    Get,
    /// Remove it
    Delete,
    /// Everything that this installation owns
    ListInstances,
    /// How its targets are
    Check,
}

/// How the answer is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Yaml,
    Json,
}

/// Call one function of a plugin
#[derive(Args)]
#[command(
    after_help = "Examples:\n  proxy-operator plugin call rental.wasm check --provider provider.yaml\n  proxy-operator plugin call rental.wasm create --provider provider.yaml --placement east@office-7 --login-file login"
)]
pub(in crate::cli) struct CallArgs {
    #[command(flatten)]
    bench: BenchArgs,
    /// The function
    function: Function,
    /// The placement, as place answers it; create, get and delete need it
    #[arg(long, value_name = "TEXT")]
    placement: Option<String>,
    /// A placement that place must not answer; may be repeated
    #[arg(long, value_name = "TEXT")]
    avoid: Vec<String>,
    /// Instead of the Proxy's image
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Instead of the Proxy's size
    #[arg(long, value_name = "NAME")]
    size: Option<String>,
    /// Instead of the Proxy's location
    #[arg(long, value_name = "NAME")]
    location: Option<String>,
    /// Instead of the Proxy's parameters
    #[arg(long, value_name = "JSON", value_parser = object)]
    parameters: Option<Map<String, Value>>,
    /// Instead of the Proxy's port
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Instead of the Proxy's protocol
    #[arg(long, value_parser = ["http", "socks5"])]
    protocol: Option<String>,
    /// Id of the installation that owns the instance
    #[arg(long, value_name = "ID", default_value = "plugin-call")]
    installation: String,
    /// UID of the Proxy [default: the manifest's, else a fixed one]
    #[arg(long, value_name = "UUID")]
    uid: Option<String>,
    /// How often the proxy was rebuilt
    #[arg(long, value_name = "N", default_value_t = 0)]
    incarnation: u32,
    /// How often a place was chosen
    #[arg(long, value_name = "N", default_value_t = 0)]
    attempt: u32,
    /// What create or get answered as provider-id
    #[arg(long, value_name = "TEXT")]
    provider_id: Option<String>,
    /// What create or get answered as backend-id
    #[arg(long, value_name = "TEXT")]
    backend_id: Option<String>,
    /// What the last call left as continuation
    #[arg(long, value_name = "TEXT")]
    continuation: Option<String>,
    /// Instead of the hash of the Proxy's spec
    #[arg(long, value_name = "TEXT")]
    spec_hash: Option<String>,
    /// File with user:password of the proxy that create makes [default: one that nobody learns]
    #[arg(long, value_name = "FILE")]
    login_file: Option<PathBuf>,
    /// How the answer is printed
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("it must be a JSON object: {e}"))
}

/// UID of a Proxy that has none: the same in each call, so that create, get and delete are about one instance.
const UID: &str = "00000000-0000-4000-8000-000000000001";

pub(super) async fn call(args: CallArgs) -> anyhow::Result<u8> {
    let bench = args.bench.read().await?;
    let request = args.request(&bench)?;
    let needs_place = matches!(args.function, Function::Create | Function::Get | Function::Delete);
    anyhow::ensure!(
        !needs_place || !request.identity.placement.is_empty(),
        "{} acts at a placement: give --placement, as `plugin call FILE place` answers it",
        args.function.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
    );
    let outcome = match ready(&args, &bench, &request).await {
        Ok(handle) => answer(&args, &handle, &request).await,
        Err(error) => Err(error),
    };
    let (shown, status) = match outcome {
        Ok(answer) => (answer, 0),
        Err(error) => (json!({"error": show::error(&error)}), 1),
    };
    match args.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&shown)?),
        Output::Yaml => println!("{}", serde_saphyr::to_string(&shown)?.trim_end()),
    }
    Ok(status)
}

/// The plugin in the service of the Provider, after what the operator looks at first.
async fn ready(args: &CallArgs, bench: &Bench, request: &Request) -> Result<Handle, CallError> {
    let (provider, plugin) = (&bench.provider, &bench.plugin.description);
    let missing = |message: String| CallError::new(ErrorKind::ConfigMissing, message);
    let invalid = |errors: Vec<_>| CallError::new(ErrorKind::InvalidSpec(errors.clone()), list_fields(&errors));
    let grants = Grants::new(&provider.spec, bench.secrets.clone()).map_err(|e| missing(e.to_string()))?;
    grants.serve(plugin).map_err(|e| missing(e).with_reason("ConnectionMissing"))?;
    grants.probe().await.map_err(|e| missing(e.to_string()).with_reason(e.reason()))?;
    check_schema(&plugin.config_schema, &Value::Object(provider.spec.config.clone()), "/config").map_err(invalid)?;
    if matches!(args.function, Function::Validate | Function::Place | Function::Create) {
        check_schema(&plugin.parameters_schema, &request.parameters, "/parameters").map_err(invalid)?;
    }
    Ok(Handle::new(
        bench.plugin.clone(),
        provider.metadata.name.as_deref().unwrap_or_default(),
        Arc::new(grants),
        &provider.spec.config,
        &provider.spec.limits,
        &args.installation,
        &Shared::new(Arc::new(SystemClock::default())),
    ))
}

async fn answer(args: &CallArgs, handle: &Handle, request: &Request) -> Result<Value, CallError> {
    let identity = &request.identity;
    Ok(match args.function {
        Function::Describe => show::description(&handle.describe().await?),
        Function::Validate => match handle.validate(Some(request)).await? {
            Ok(()) => json!({"valid": true}),
            Err(errors) => {
                return Err(CallError::new(ErrorKind::InvalidSpec(errors.clone()), list_fields(&errors)));
            }
        },
        Function::Place => json!({"placement": handle.place(request, &args.avoid).await?}),
        Function::Create => show::instance(&handle.create(request).await?),
        Function::Get => show::presence(&handle.get(identity).await?),
        Function::Delete => show::deletion(&handle.delete(identity).await?),
        Function::ListInstances => {
            json!({"instances": handle.list().await?.iter().map(show::instance).collect::<Vec<_>>()})
        }
        Function::Check => json!({"findings": handle.check().await?.iter().map(show::finding).collect::<Vec<_>>()}),
    })
}

impl CallArgs {
    /// The Proxy's wishes, with those of the flags over them.
    fn request(&self, bench: &Bench) -> anyhow::Result<Request> {
        let provider = bench.provider.metadata.name.clone().unwrap_or_default();
        let meta = bench.proxy.as_ref().map(|proxy| proxy.metadata.clone()).unwrap_or_default();
        let mut spec = bench.proxy.as_ref().map_or_else(|| ProxySpec::of_provider(&provider), |p| p.spec.clone());
        spec.image = self.image.clone().or(spec.image);
        spec.size = self.size.clone().or(spec.size);
        spec.location = self.location.clone().or(spec.location);
        spec.parameters = self.parameters.clone().unwrap_or(spec.parameters);
        spec.port = self.port.unwrap_or(spec.port);
        match self.protocol.as_deref() {
            Some("socks5") => spec.protocol = Protocol::Socks5,
            Some(_) => spec.protocol = Protocol::Http,
            None => {}
        }
        let proxy_uid = self.uid.clone().or(meta.uid).unwrap_or_else(|| UID.into());
        let login = self.login(&spec, &proxy_uid)?;
        let identity = Identity {
            owner: Owner {
                installation: self.installation.clone(),
                proxy_uid,
                namespace: meta.namespace.unwrap_or_else(|| "default".into()),
                name: meta.name.unwrap_or_else(|| "proxy".into()),
            },
            incarnation: self.incarnation,
            attempt: self.attempt,
            placement: self.placement.clone().unwrap_or_default(),
            provider_id: self.provider_id.clone(),
            backend_id: self.backend_id.clone(),
            continuation: self.continuation.clone(),
        };
        let request =
            Request::new(&spec, identity, login, vec![], None).with_bootstrap(bench.provider.spec.bootstrap.as_deref());
        let spec_hash = self.spec_hash.clone().unwrap_or_else(|| request.spec_hash.clone());
        Ok(Request { spec_hash, ..request })
    }

    fn login(&self, spec: &ProxySpec, uid: &str) -> anyhow::Result<Option<Login>> {
        if let Some(path) = &self.login_file {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let pair = text.trim_end_matches(['\r', '\n']).split_once(':');
            let (username, password) = pair.with_context(|| format!("{} must hold user:password", path.display()))?;
            return Ok(Some(Login { username: username.into(), password: password.to_owned().into() }));
        }
        // Never an open proxy by accident, and never a password that somebody could work out.
        let key = LoginKey::new(rand::random::<[u8; 32]>().to_vec().into());
        Ok((spec.auth.mode != AuthMode::None).then(|| key.derive(uid, self.incarnation)))
    }
}
