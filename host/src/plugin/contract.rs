//! Which contract a file was built against, read from its own names before anything is compiled.
//!
//! wasmtime links by semver (same minor within 0.x), but its text of a mismatch helps nobody; so the gate is here.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use super::io::wasi::PACKAGES;
use super::packages::Packages;
use crate::model::condition::one_line;
use wasmparser::{Encoding, Parser, Payload, Validator, WasmFeatures};

/// The package that plugins are built against.
pub const PACKAGE: &str = "crawl:provider";

/// The contract's version that this host serves.
pub const VERSION: &str = "0.1.0";

/// Interfaces that this host provides.
pub const IMPORTS: [&str; 8] = ["types", "faults", "ssh", "http", "secrets", "log", "clock", "random"];

/// Of a name in a file, or of an error about it. A file may name a thing with 100,000 bytes, and a refusal stands in a status.
const FOREIGN_BYTES: usize = 512;

/// Why a file is no plugin for this host.
#[derive(Debug, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(ContractRefused),
    derive(strum::EnumIter, strum::IntoStaticStr),
    strum(serialize_all = "kebab-case")
)]
#[strum_discriminants(doc = "The kinds of [`ContractError`], as the documentation names them.")]
pub enum ContractError {
    /// Not WebAssembly at all.
    #[error("it is no WebAssembly file (it begins with {0:?}); upload the .wasm that the build wrote")]
    NotWasm(String),
    /// Compiled code.
    #[error(
        "it is compiled code, which runs outside of the sandbox and is accepted only in --plugin-dir, beside the .wasm that it was made of; upload that .wasm"
    )]
    Native,
    /// Broken or cut off.
    #[error("the file is broken or cut off ({0}); upload it again, or build it again")]
    Malformed(String),
    /// A core module that was not built with the contract.
    #[error(
        "it is a core module without the contract's type information; build it against package {PACKAGE}@{VERSION}, for example with the SDK"
    )]
    CoreWithoutContract,
    /// A component that does not export the contract.
    #[error("it is a component that does not export {PACKAGE}/provider; build it against package {PACKAGE}@{VERSION}")]
    NoProvider,
    /// Another version of the contract.
    #[error(
        "it was built against {PACKAGE}@{guest}, and this operator serves {PACKAGE}@{VERSION}; build it against 0.1, or upgrade the operator"
    )]
    Version {
        /// The file's version.
        guest: String,
    },
    /// An import that this host does not give.
    #[error(
        "it imports {name}, which this operator does not provide; it provides {} and WASI 0.2 without http",
        provided()
    )]
    MissingImport {
        /// The import as the file names it.
        name: String,
    },
}

fn provided() -> String {
    IMPORTS[2..].iter().map(|i| format!("{PACKAGE}/{i}@{VERSION}")).collect::<Vec<_>>().join(", ")
}

/// Words that a file brings, or an error about it, for a refusal.
pub(super) fn foreign(text: &str) -> String {
    one_line(text, FOREIGN_BYTES)
}

fn malformed(error: impl fmt::Display) -> ContractError {
    ContractError::Malformed(foreign(&error.to_string()))
}

/// All type information of a core module, and packages in it. The libraries that read it follow packages as deep as they use
/// each other, and names as often as they stand there; a real plugin has some kilobytes about some ten packages.
const TYPE_INFORMATION: (usize, usize) = (1 << 20, 500);

/// A component that passed the gate.
#[derive(Debug)]
pub struct Checked<'a> {
    /// The component's bytes; wrapped here when the file was a core module.
    pub component: Cow<'a, [u8]>,
    /// The version that the file was built against.
    pub contract: String,
    /// Names of what it imports.
    pub imports: Vec<String>,
}

/// Checks a file against the contract, wrapping a core module that carries component type information. What is inside is
/// for [`validate`].
///
/// # Errors
/// Says what the file is and what to do.
pub fn check(bytes: &[u8]) -> Result<Checked<'_>, ContractError> {
    let component = component(bytes)?;
    let names = names(&component)?;
    let contract = gate(&names)?;
    Ok(Checked { component, contract, imports: names.imports.into_iter().collect() })
}

/// The component that a file is, or holds as a core module.
///
/// # Errors
/// Says what the file is and what to do.
pub fn component(bytes: &[u8]) -> Result<Cow<'_, [u8]>, ContractError> {
    if bytes.starts_with(b"\x7fELF") {
        return Err(ContractError::Native);
    }
    if !bytes.starts_with(b"\0asm") {
        let head: String =
            String::from_utf8_lossy(&bytes[..bytes.len().min(16)]).chars().filter(|c| !c.is_control()).collect();
        return Err(ContractError::NotWasm(head));
    }
    Ok(match encoding(bytes)? {
        Encoding::Component => Cow::Borrowed(bytes),
        Encoding::Module => Cow::Owned(wrap(bytes)?),
    })
}

/// Whether a component is sound in all its parts; needed once for each file, before it is compiled.
///
/// # Errors
/// [`ContractError::Malformed`].
pub fn validate(component: &[u8]) -> Result<(), ContractError> {
    let validate = || Validator::new_with_features(WasmFeatures::default()).validate_all(component).map(drop);
    match std::panic::catch_unwind(validate) {
        Ok(outcome) => outcome.map_err(malformed),
        // An assertion instead of an error, as for types that are nested too deep.
        Err(_) => Err(malformed("its types are none that can be read")),
    }
}

/// Bytes of code in all core modules of a component.
pub fn code_bytes(component: &[u8]) -> u64 {
    let sections = Parser::new(0).parse_all(component).map_while(Result::ok);
    sections.map(|s| if let Payload::CodeSectionStart { size, .. } = s { u64::from(size) } else { 0 }).sum()
}

/// Turns a core module with component type information into a component.
///
/// # Errors
/// [`ContractError::CoreWithoutContract`] without that information, [`ContractError::Malformed`] when it does not fit.
pub fn wrap(module: &[u8]) -> Result<Vec<u8>, ContractError> {
    // The libraries that do it panic on some of what no tool writes. Nothing of theirs outlives the panic.
    std::panic::catch_unwind(|| encode(module))
        .unwrap_or_else(|_| Err(malformed("its type information is none that can be read")))
}

fn encode(module: &[u8]) -> Result<Vec<u8>, ContractError> {
    let (mut packages, mut found, mut bytes) = (Packages::default(), false, 0);
    let too_much = || {
        let (bytes, packages) = TYPE_INFORMATION;
        malformed(format!("its type information has over {bytes} bytes or over {packages} packages"))
    };
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::CustomSection(section) = payload.map_err(malformed)?
            && section.name().starts_with("component-type")
        {
            bytes += section.name().len() + section.data().len();
            if bytes > TYPE_INFORMATION.0 {
                return Err(too_much());
            }
            packages.add(section.data()).map_err(malformed)?;
            found = true;
        }
    }
    if !found {
        return Err(ContractError::CoreWithoutContract);
    }
    if packages.count() > TYPE_INFORMATION.1 {
        return Err(too_much());
    }
    if packages.run_in_a_circle() {
        return Err(malformed("packages of its type information use each other in a circle"));
    }
    wit_component::ComponentEncoder::default()
        .validate(true)
        .module(module)
        .and_then(|mut encoder| encoder.encode())
        .map_err(|e| malformed(format!("{e:#}")))
}

fn encoding(bytes: &[u8]) -> Result<Encoding, ContractError> {
    // The whole file is parsed: a broken tail is found here and not by the compiler.
    let mut found = None;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(malformed)? {
            Payload::Version { encoding, .. } if found.is_none() => found = Some(encoding),
            _ => {}
        }
    }
    found.ok_or_else(|| malformed("no version"))
}

struct Names {
    imports: BTreeSet<String>,
    exports: BTreeSet<String>,
}

/// Names of the outermost component's imports and exports.
fn names(component: &[u8]) -> Result<Names, ContractError> {
    let mut names = Names { imports: BTreeSet::new(), exports: BTreeSet::new() };
    let mut depth = 0u32;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(malformed)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    names.imports.insert(import.map_err(malformed)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    names.exports.insert(export.map_err(malformed)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(names)
}

fn gate(names: &Names) -> Result<String, ContractError> {
    let ours = |name: &String| {
        let (interface, version) = name.strip_prefix(PACKAGE)?.strip_prefix('/')?.split_once('@')?;
        Some((interface.to_owned(), version.to_owned()))
    };
    let (_, contract) =
        names.exports.iter().filter_map(ours).find(|(i, _)| i == "provider").ok_or(ContractError::NoProvider)?;
    // All versions before all names: with another version, an unknown name is a consequence.
    for (_, version) in names.exports.iter().chain(&names.imports).filter_map(ours) {
        if !same_track(&version) {
            return Err(ContractError::Version { guest: foreign(&version) });
        }
    }
    for import in &names.imports {
        let known = ours(import).is_some_and(|(interface, _)| IMPORTS.contains(&interface.as_str()));
        if !known && !is_wasi(import) {
            return Err(ContractError::MissingImport { name: foreign(import) });
        }
    }
    Ok(contract)
}

/// Whether an import is of the WASI that is linked. What it can do here is another matter.
fn is_wasi(import: &str) -> bool {
    let version = import.split_once('@').map(|(_, version)| version);
    PACKAGES.iter().any(|package| import.starts_with(package))
        && version.is_some_and(|version| version.starts_with("0.2."))
}

/// Whether `guest` links to this host: within 0.x the same minor version, and no pre-release.
fn same_track(guest: &str) -> bool {
    guest.strip_prefix("0.1.").is_some_and(|patch| patch.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_names(imports: &[&str], exports: &[&str]) -> Names {
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Names { imports: set(imports), exports: set(exports) }
    }

    #[test]
    fn the_gate_knows_versions_and_imports() {
        let provider = "crawl:provider/provider@0.1.0";
        assert_eq!(gate(&mk_names(&["crawl:provider/http@0.1.0"], &[provider])).unwrap(), "0.1.0");
        assert!(gate(&mk_names(&["wasi:cli/environment@0.2.6", "wasi:sockets/tcp@0.2.0"], &[provider])).is_ok());
        assert_eq!(
            gate(&mk_names(&["crawl:provider/types@0.1.7"], &["crawl:provider/provider@0.1.7"])).unwrap(),
            "0.1.7"
        );
        for (names, expected) in [
            (mk_names(&[], &["other:thing/x@1.0.0"]), "does not export crawl:provider/provider"),
            (
                mk_names(&[], &["crawl:provider/provider@0.2.0"]),
                "built against crawl:provider@0.2.0, and this operator serves crawl:provider@0.1.0",
            ),
            (mk_names(&[], &["crawl:provider/provider@0.1.0-rc1"]), "0.1.0-rc1"),
            (mk_names(&["crawl:provider/teleport@0.1.0"], &[provider]), "imports crawl:provider/teleport@0.1.0"),
            (mk_names(&["wasi:http/types@0.2.3"], &[provider]), "imports wasi:http/types@0.2.3"),
            (mk_names(&["wasi:cli/environment@0.3.0"], &[provider]), "imports wasi:cli/environment@0.3.0"),
        ] {
            let error = gate(&names).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_is_no_component_is_refused_by_name() {
        for (bytes, expected) in [
            (&b"hello, world"[..], "begins with \"hello, world\""),
            (b"", "no WebAssembly file"),
            (b"\x7fELF\x02\x01", "it is compiled code"),
            (b"\0asm", "broken or cut off"),
            (b"\0asm\x01\0\0\0", "core module without the contract"),
            (b"\0asm\x0d\0\x01\0", "does not export"),
            (b"\0asm\x01\0\0\0\x01\x7f", "broken or cut off"),
        ] {
            let error = check(bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
