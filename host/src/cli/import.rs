//! `import`: a list of bought proxies becomes manifests of the provider `static`.

mod lines;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde_json::{Map, Value, json};

use self::lines::{Entry, parse};
use super::client::Failure;
use super::write_whole;
use crate::model::naming::{is_label, is_subdomain};
use crate::model::{API_VERSION, PROVIDER_SECRET_LABEL};

/// As many secrets as a Provider may name.
const LOGINS: usize = 256;

/// Make manifests of a list of proxies
#[derive(Args)]
#[command(
    after_help = "Each line is one of\n  HOST:PORT\n  HOST:PORT:USER:PASSWORD\n  USER:PASSWORD@HOST:PORT\n  http://USER:PASSWORD@HOST:PORT or socks5://…\nor the file is CSV with the columns host, port and, if need be, user, password, protocol, location.\n\nExample:\n  proxy-operator import bought.txt --provider bought -o manifests"
)]
pub(super) struct ImportArgs {
    /// The list; - is standard input
    file: PathBuf,
    /// Name of the Provider; the Proxies are called after it
    #[arg(long, default_value = "imported")]
    provider: String,
    /// Namespace of the Proxies
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// Folder to write the manifests to, instead of printing them; no file in it is overwritten
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(super) fn import(args: ImportArgs) -> anyhow::Result<()> {
    if !is_label(&args.provider) || args.provider.len() > 50 || !is_subdomain(&args.namespace) {
        let why = "--provider and --namespace are names of lower-case letters, digits and '-'";
        return Err(Failure::Usage(why.into()).into());
    }
    let shown = args.file.display().to_string();
    let text = if args.file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(&args.file)
    };
    let entries = parse(&text.with_context(|| shown.clone())?).map_err(|e| anyhow::anyhow!("{shown}: {e}"))?;
    let (secret, others) = manifests(&args.provider, &args.namespace, &entries)?;
    let yaml = |documents: &[Value]| -> anyhow::Result<String> {
        let all = documents.iter().map(|one| Ok(serde_saphyr::to_string(one)?.trim_end().to_owned()));
        Ok(all.collect::<anyhow::Result<Vec<_>>>()?.join("\n---\n") + "\n")
    };
    let Some(dir) = args.output else {
        print!("{}", yaml(&secret.into_iter().chain(others).collect::<Vec<_>>())?);
        return Ok(());
    };
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let mut files = vec![(dir.join(format!("{}.yaml", args.provider)), 0o644, yaml(&others)?)];
    if let Some(secret) = secret {
        files.insert(0, (dir.join(format!("{}-logins.yaml", args.provider)), 0o600, yaml(&[secret])?));
    }
    for (path, ..) in &files {
        anyhow::ensure!(!path.exists(), "{} is there already: remove it, or choose another --provider", path.display());
    }
    for (path, mode, text) in files {
        write_whole(&path, mode, &text)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The Secret with the logins if there are any, and the Provider with its Proxies.
fn manifests(provider: &str, namespace: &str, entries: &[Entry]) -> anyhow::Result<(Option<Value>, Vec<Value>)> {
    let mut logins: Vec<&str> = entries.iter().filter_map(|entry| entry.login.as_deref()).collect();
    logins.sort_unstable();
    logins.dedup();
    let count = logins.len();
    anyhow::ensure!(count <= LOGINS, "{count} different logins, and a Provider takes {LOGINS}: split the list");
    let key_of = |login: &str| format!("login-{}", logins.binary_search(&login).map_or(0, |at| at + 1));
    let secret_name = format!("{provider}-logins");
    let width = entries.len().to_string().len();
    let name_of = |index: usize| format!("{provider}-{:0width$}", index + 1);
    let (mut listed, mut proxies) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let name = name_of(index);
        let mut place = json!({"name": name, "host": entry.host, "port": entry.port, "protocol": entry.protocol});
        let mut spec = json!({"provider": provider, "protocol": entry.protocol, "parameters": {"entry": name}});
        match &entry.login {
            Some(login) => place["loginSecret"] = key_of(login).into(),
            None => spec["auth"] = json!({"mode": "none"}),
        }
        if let Some(location) = &entry.location {
            place["location"] = location.as_str().into();
            spec["location"] = location.as_str().into();
        }
        listed.push(place);
        let metadata = json!({"name": name, "namespace": namespace});
        proxies.push(json!({"apiVersion": API_VERSION, "kind": "Proxy", "metadata": metadata, "spec": spec}));
    }
    let reference = |login: &&str| {
        let key = key_of(login);
        (key.clone(), json!({"secretRef": {"name": secret_name, "key": key}}))
    };
    let spec = json!({
        "plugin": {"name": "static"},
        "secrets": logins.iter().map(reference).collect::<Map<_, _>>(),
        "config": {"proxies": listed},
    });
    let mut documents =
        vec![json!({"apiVersion": API_VERSION, "kind": "Provider", "metadata": {"name": provider}, "spec": spec})];
    documents.extend(proxies);
    let secret = (!logins.is_empty()).then(|| {
        let data: Map<String, Value> = logins.iter().map(|login| (key_of(login), Value::from(*login))).collect();
        let metadata = json!({"name": secret_name, "labels": {PROVIDER_SECRET_LABEL: "true"}});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
    });
    Ok((secret, documents))
}
