//! `plugin new`: a crate with all that it is built on, so that it needs nothing but cargo's registry.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

use crate::model::naming::is_label;

/// The contract.
pub(super) const WIT: &str = include_str!("../../../../wit/provider.wit");

/// The workspace's manifest, for what the SDK's takes from it.
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

/// Files by their paths below a folder of this repository.
macro_rules! files {
    ($folder:literal: $($path:literal)*) => {
        &[$(($path, include_str!(concat!("../../../../", $folder, "/", $path)))),*]
    };
}

const SDK: &[(&str, &str)] = files!("plugins/sdk":
    "Cargo.toml" "src/bindings.rs" "src/config.rs" "src/error.rs" "src/fault.rs" "src/http.rs" "src/http/answer.rs"
    "src/lib.rs" "src/log.rs" "src/name.rs" "src/panic.rs" "src/provider.rs" "src/random.rs" "src/secrets.rs"
    "src/shapes.rs" "src/ssh.rs" "src/testing.rs" "src/time.rs");

const TEMPLATE: &[(&str, &str)] = files!("plugins/template":
    "Cargo.lock.in" "Cargo.toml.in" "README.md" "build.sh" "gitignore" "provider.yaml" "src/config.schema.json" "src/lib.rs"
    "src/parameters.schema.json" "tests/backend.yaml");

/// Writes a new plugin, named after the folder.
pub(super) fn new(dir: &Path) -> anyhow::Result<()> {
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    anyhow::ensure!(
        is_label(name),
        "{}: the last part is the plugin's name, a DNS-1123 label: at most 63 of a-z, 0-9 and '-'",
        dir.display()
    );
    let empty = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error).with_context(|| dir.display().to_string()),
    };
    anyhow::ensure!(empty, "{} is not empty; name a folder that does not exist yet", dir.display());
    for (path, text) in TEMPLATE {
        let text = text.replace("{{name}}", name).replace("{{crate}}", &name.replace('-', "_"));
        let (path, mode) = match *path {
            "Cargo.lock.in" => ("Cargo.lock", 0o644),
            "Cargo.toml.in" => ("Cargo.toml", 0o644),
            "gitignore" => (".gitignore", 0o644),
            "build.sh" => ("build.sh", 0o755),
            // It holds a Secret.
            "provider.yaml" => ("provider.yaml", 0o600),
            other => (other, 0o644),
        };
        write(&dir.join(path), &text, mode)?;
    }
    for (path, text) in SDK {
        write(&dir.join("sdk").join(path), &standalone(text), 0o644)?;
    }
    write(&dir.join("wit/provider.wit"), WIT, 0o644)?;
    println!("{} is written. Next:\n", dir.display());
    println!("  cd {}", dir.display());
    println!("  ./build.sh");
    println!("  proxy-operator plugin check {name}.wasm");
    println!("  proxy-operator plugin test {name}.wasm --provider provider.yaml --script tests/backend.yaml");
    Ok(())
}

/// A file of the SDK as it stands alone: what it takes from the workspace is written out, and `wit/` is its neighbour.
fn standalone(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let field = line.strip_suffix(".workspace = true");
        let value =
            |field: &str| WORKSPACE.lines().find(|l| l.strip_prefix(field).is_some_and(|r| r.starts_with(" = ")));
        field.and_then(value).unwrap_or(line)
    });
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    text.replace("\"../../wit\"", "\"../wit\"")
}

fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        fs::File::options().write(true).create_new(true).mode(mode).open(path)?.write_all(text.as_bytes())
    };
    write().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_disk(folder: &str) -> Vec<String> {
        fn walk(root: &Path, dir: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => walk(root, &path, found),
                    false => found.push(path.strip_prefix(root).unwrap().display().to_string()),
                }
            }
        }
        let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("..").join(folder);
        let mut found = vec![];
        walk(&root, &root, &mut found);
        found.sort();
        found
    }

    #[test]
    fn every_file_of_sdk_and_template_is_embedded() {
        for (folder, embedded) in [("plugins/sdk", SDK), ("plugins/template", TEMPLATE)] {
            let mut embedded: Vec<_> = embedded.iter().map(|(path, _)| (*path).to_owned()).collect();
            embedded.sort();
            assert_eq!(embedded, on_disk(folder));
        }
    }

    #[test]
    fn the_sdk_takes_nothing_from_a_workspace() {
        for (path, text) in SDK {
            let alone = standalone(text);
            assert!(!alone.contains("workspace = true") && !alone.contains("../../"), "{path}");
        }
        let manifest = standalone(SDK[0].1);
        assert!(manifest.contains("\nedition = \"2024\"\n") && manifest.contains("\nversion = \""), "{manifest}");
    }

    #[test]
    fn a_new_plugin_is_locked_to_what_this_repository_is_built_with() {
        // To update it: copy this workspace's Cargo.lock into a new plugin, run `cargo metadata` there, and put its name back.
        let (_, lock) = TEMPLATE.iter().find(|(path, _)| *path == "Cargo.lock.in").unwrap();
        let ours = include_str!("../../../../Cargo.lock");
        let packages = |lock: &str| -> Vec<String> {
            lock.split("[[package]]").skip(1).map(|p| p.lines().take(3).collect::<Vec<_>>().join(" ")).collect()
        };
        let known = packages(ours);
        for package in packages(lock).into_iter().filter(|package| !package.contains("provider-{{name}}")) {
            assert!(known.contains(&package), "{package} is not in Cargo.lock");
        }
    }

    #[test]
    fn a_folder_with_something_in_it_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let fresh = dir.path().join("my-cloud");
        new(&fresh).unwrap();
        let lib = fs::read_to_string(fresh.join("src/lib.rs")).unwrap();
        assert!(lib.contains("Description::new(\"my-cloud\"") && !lib.contains("{{"), "{lib}");
        assert!(fs::read_to_string(fresh.join("build.sh")).unwrap().contains("provider_my_cloud.wasm"));
        assert!(new(&fresh).unwrap_err().to_string().contains("is not empty"));
        assert!(new(&dir.path().join("My_Cloud")).unwrap_err().to_string().contains("DNS-1123 label"));
    }
}
