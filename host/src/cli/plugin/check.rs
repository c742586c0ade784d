//! `plugin check`: whether a plugin would load, and what it costs.

use std::path::Path;

use super::bench::load;
use super::{name_of, read};
use crate::plugin::compiler;
use crate::plugin::contract::{self, IMPORTS, PACKAGE, VERSION};
use crate::plugin::source::upload::{PARTS, pack};

pub(super) async fn check(file: &Path) -> anyhow::Result<u8> {
    let plugin = match load(file).await? {
        Ok(plugin) => plugin,
        Err(refused) => {
            eprintln!("{refused}");
            return Ok(1);
        }
    };
    let bytes = read(file)?;
    let checked = contract::check(&bytes)?;
    let description = &plugin.description;
    println!("{} {}: {}", description.name, description.version, description.summary);
    println!("contract      {PACKAGE}@{}; this operator serves {PACKAGE}@{VERSION}", plugin.contract);
    println!("digest        {}", plugin.digest);
    for import in &checked.imports {
        println!("import        {import}: {}", given(import));
    }
    for need in &description.connections {
        let required = if need.required { ", required" } else { "" };
        println!("connection    {} ({}{required}): {}", need.name, need.kind, need.doc);
    }
    for pointer in &description.connection_pointers {
        println!("connections   named in config at {pointer}");
    }
    if !description.capabilities.is_empty() {
        println!("capabilities  {}", description.capabilities.join(", "));
    }
    println!("size          {} bytes: {}", plugin.size, config_maps(pack(name_of(file), &bytes).len()));
    let code = contract::code_bytes(&checked.component);
    println!(
        "compile       up to {} MiB of memory for {} KiB of code; loaded here in {} ms",
        compiler::need(code) >> 20,
        code >> 10,
        plugin.loading.1.as_millis()
    );
    Ok(0)
}

/// By which version of ours an import is served.
fn given(import: &str) -> String {
    let interface =
        import.strip_prefix(PACKAGE).and_then(|rest| rest.strip_prefix('/')).and_then(|r| r.split('@').next());
    match interface.filter(|name| IMPORTS.contains(name)) {
        Some(_) => format!("served as @{VERSION}"),
        None => "served".to_owned(),
    }
}

/// How a cluster takes it.
fn config_maps(parts: usize) -> String {
    match parts {
        0 | 1 => "fits one ConfigMap".to_owned(),
        parts if parts <= PARTS as usize => format!("{parts} ConfigMaps as `plugin pack` writes them"),
        parts => format!("{parts} ConfigMaps, and {PARTS} are the most: a registry or --plugin-dir takes it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_over_one_config_map_is_told_in_parts() {
        assert_eq!(config_maps(1), "fits one ConfigMap");
        assert!(config_maps(2).starts_with("2 ConfigMaps as"));
        assert!(config_maps(PARTS as usize + 1).contains("are the most"));
    }
}
