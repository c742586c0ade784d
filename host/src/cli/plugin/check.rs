//! `plugin check`: whether a plugin would load, and what it costs.

use std::path::Path;

use wasmparser::{Parser, Payload};

use super::bench::load;
use super::pack::CONFIG_MAP_BYTES;
use super::read;
use crate::plugin::contract::{self, IMPORTS, PACKAGE, VERSION};

/// Memory that a compile takes whatever it compiles, and for each MiB of core code: from and to, as measured.
const COMPILE_BASE_MIB: f64 = 16.0;
const COMPILE_MIB: (f64, f64) = (25.0, 45.0);

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
    println!("size          {} bytes: {}", plugin.size, parts(plugin.size));
    let core = core_bytes(&checked.component)? as f64 / f64::from(1 << 20);
    println!(
        "compile       {:.0} to {:.0} MiB of memory for {core:.2} MiB of code; loaded here in {} ms",
        COMPILE_BASE_MIB + core * COMPILE_MIB.0,
        COMPILE_BASE_MIB + core * COMPILE_MIB.1,
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

/// How many ConfigMaps hold it.
fn parts(size: usize) -> String {
    match size.div_ceil(CONFIG_MAP_BYTES) {
        0 | 1 => "fits one ConfigMap".to_owned(),
        parts => format!("{parts} ConfigMaps, or a folder mounted into --plugin-dir"),
    }
}

/// Bytes of all core modules inside a component.
fn core_bytes(component: &[u8]) -> anyhow::Result<usize> {
    let mut bytes = 0;
    for payload in Parser::new(0).parse_all(component) {
        if let Payload::ModuleSection { unchecked_range, .. } = payload? {
            bytes += unchecked_range.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_over_one_config_map_is_told_in_parts() {
        assert_eq!(parts(300_000), "fits one ConfigMap");
        assert!(parts(CONFIG_MAP_BYTES + 1).starts_with("2 ConfigMaps"));
        assert!(parts(12 << 20).starts_with("13 ConfigMaps"));
    }
}
