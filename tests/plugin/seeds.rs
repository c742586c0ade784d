//! The files that the fuzzer begins with, in `tests/fuzz/seeds`: each is refused as its name says, or loaded, here too.
//! `SEEDS=write` writes them anew, after a change of the contract.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use proxy_operator::plugin::contract::{ContractRefused, wrap};
use proxy_operator::plugin::engine::CodeRefused;
use proxy_operator::plugin::load::{LoadError, Refused};
use proxy_operator::plugin::source::upload::pack;
use proxy_operator_tests::plugins::{file, loader, registry};
use proxy_operator_tests::root;
use wasm_encoder::{
    CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    ImportSection, MemorySection, MemoryType, Module, TypeSection, ValType,
};
use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::abi::{AbiVariant, WasmType};
use wit_parser::{Resolve, WorldItem};

use crate::fuzz::{Outcome, join, load};

fn folder(target: &str) -> PathBuf {
    root().join("tests/fuzz/seeds").join(target)
}

fn seeds(target: &str) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder(target)).expect("the seeds").map(|entry| entry.expect("a file").path());
    files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())).collect()
}

/// The refusal's name in `docs/providers.md`.
fn name(error: &LoadError) -> &'static str {
    match error {
        LoadError::Contract(error) => ContractRefused::from(error).into(),
        LoadError::Code(error) => CodeRefused::from(error).into(),
        error => Refused::from(error).into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_seed_is_loaded_or_refused_as_its_name_says() {
    if std::env::var("SEEDS").is_ok_and(|value| value == "write") {
        write();
    }
    let (loader, registry) = (loader(), registry());
    for (seed, bytes) in seeds("load") {
        assert!(bytes.len() <= 20 << 10, "{seed} has {} bytes", bytes.len());
        let expected = seed.split('.').next().unwrap();
        let found = match load(&loader, "seed", &bytes, u64::MAX).await {
            Outcome::Loaded => "loaded",
            Outcome::Refused(error) => name(&error),
            Outcome::Sound => panic!("{seed}: nothing bounds its code"),
        };
        assert_eq!(found, expected, "{seed}");
        // As a person is told.
        let source = file(&seed);
        registry.offer("seed", &source, bytes).await;
        if let Some(refusal) = registry.refusal("seed", &source) {
            let begins = format!("plugin seed from {seed} is refused: ");
            assert!(refusal.message.starts_with(&begins), "{}", refusal.message);
        }
        registry.withdraw("seed", &source);
    }
    for (seed, bytes) in seeds("parts") {
        let expected = seed.split('.').next().unwrap();
        assert_eq!(join(&bytes).as_ref().err().map_or("joined", name), expected, "{seed}");
    }
}

/// A core module with the contract's type information, in which nothing works but `describe`.
pub struct Core<'a> {
    /// Its contract.
    pub wit: &'a str,
    /// What it calls itself; none: `describe` traps.
    pub name: Option<&'a str>,
    /// A function that it imports, without parameters.
    pub import: Option<(&'a str, &'a str, &'a [ValType])>,
    /// The schema of its config.
    pub schema: &'a str,
    /// How many capabilities it names; they have no letters.
    pub capabilities: u8,
}

impl Core<'_> {
    pub fn build(&self) -> Vec<u8> {
        let mut resolve = Resolve::default();
        let package = resolve.push_source("provider.wit", self.wit).expect("the contract");
        let world = resolve.select_world(&[package], Some("plugin")).expect("its world");
        let (mut types, mut functions, mut exports, mut code) =
            (TypeSection::new(), FunctionSection::new(), ExportSection::new(), CodeSection::new());
        let mut imports = ImportSection::new();
        let mut index = 0;
        if let Some((module, function, results)) = self.import {
            // What is lifted into memory has the address for its only parameter.
            let params = if results.is_empty() { vec![ValType::I32] } else { vec![] };
            types.ty().function(params, results.iter().copied());
            imports.import(module, function, EntityType::Function(0));
            index = 1;
        }
        let imported = index;
        let mut export = |name: &str, params: Vec<ValType>, results: Vec<ValType>, body: Function| {
            types.ty().function(params, results);
            functions.function(index);
            exports.export(name, ExportKind::Func, index);
            code.function(&body);
            index += 1;
        };
        for (key, item) in &resolve.worlds[world].exports {
            let WorldItem::Interface { id, .. } = item else { continue };
            let interface = resolve.name_world_key(key);
            for (name, function) in &resolve.interfaces[*id].functions {
                let signature = resolve.wasm_signature(AbiVariant::GuestExport, function);
                let mut body = Function::new([]);
                match (name.as_str(), self.name) {
                    ("describe", Some(_)) => body.instructions().i32_const(DESCRIPTION).end(),
                    _ => body.instructions().unreachable().end(),
                };
                let (params, results) = (types_of(&signature.params), types_of(&signature.results));
                export(&format!("{interface}#{name}"), params, results, body);
            }
        }
        let mut body = Function::new([]);
        body.instructions().unreachable().end();
        export("cabi_realloc", vec![ValType::I32; 4], vec![ValType::I32], body);
        exports.export("memory", ExportKind::Memory, 0);
        let mut memories = MemorySection::new();
        memories.memory(MemoryType { minimum: 8, maximum: None, memory64: false, shared: false, page_size_log2: None });
        let mut data = DataSection::new();
        data.active(0, &ConstExpr::i32_const(DESCRIPTION), self.description());
        let mut module = Module::new();
        module.section(&types);
        if imported == 1 {
            module.section(&imports);
        }
        module.section(&functions).section(&memories).section(&exports).section(&code).section(&data);
        let mut bytes = module.finish();
        embed_component_metadata(&mut bytes, &resolve, world, StringEncoding::UTF8).expect("type information");
        bytes
    }

    /// The record `description` in memory: five texts and four lists, each an address and a length, then the texts.
    fn description(&self) -> Vec<u8> {
        let texts = [self.name.unwrap_or_default(), "0.1.0", "A seed", self.schema, "{}"];
        let (mut record, mut behind) = (vec![], vec![]);
        let beginning = DESCRIPTION + 9 * 8;
        for text in texts {
            record.extend((beginning + behind.len() as i32).to_le_bytes());
            record.extend((text.len() as i32).to_le_bytes());
            behind.extend(text.as_bytes());
        }
        record.resize(9 * 8, 0);
        // An address that is aligned, where nothing lies.
        record[40..].chunks_mut(8).for_each(|list| list[..4].copy_from_slice(&(7i32 << 16).to_le_bytes()));
        record[60] = self.capabilities;
        [record, behind].concat()
    }
}

/// Where the description lies.
const DESCRIPTION: i32 = 16;

fn types_of(types: &[WasmType]) -> Vec<ValType> {
    let one = |found: &WasmType| match found {
        WasmType::I64 | WasmType::PointerOrI64 => ValType::I64,
        WasmType::F32 => ValType::F32,
        WasmType::F64 => ValType::F64,
        WasmType::I32 | WasmType::Pointer | WasmType::Length => ValType::I32,
    };
    types.iter().map(one).collect()
}

/// Writes all seeds, but for those that a fuzzer found.
fn write() {
    let wit = fs::read_to_string(root().join("wit/provider.wit")).expect("the contract");
    let core = |wit: &str, name, import| Core { wit, name, import, schema: "{}", capabilities: 0 }.build();
    let good = core(&wit, Some("seed"), None);
    let component = wrap(&good).expect("a component");
    let with = |from: &str, to: &str| {
        assert!(wit.contains(from), "the contract has no {from:?}");
        wit.replace(from, to)
    };
    let teleport = with("  import random;\n", "  import random;\n  import teleport;\n")
        + "interface teleport { beam: func() -> string; }\n";
    let later = with("@0.1.0;", "@0.1.1;")
        .replace("  remaining-ms: func() -> u32;\n", "  remaining-ms: func() -> u32;\n  later: func() -> u32;\n");
    let mut damaged = good.clone();
    let type_information = damaged.windows(14).position(|bytes| bytes == b"component-type").expect("it is there");
    damaged[type_information + 40] ^= 0x55;
    let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let seeds = [
        ("loaded.component", component.clone()),
        ("loaded.core", good.clone()),
        ("describe.trap", core(&wit, None, None)),
        ("other-name.core", core(&wit, Some("another"), None)),
        ("version.core", core(&with("@0.1.0;", "@0.2.0;"), Some("seed"), None)),
        ("missing-import.core", core(&teleport, Some("seed"), Some(("crawl:provider/teleport@0.1.0", "beam", &[])))),
        ("link.core", core(&later, Some("seed"), Some(("crawl:provider/clock@0.1.1", "later", &[ValType::I32])))),
        ("malformed.core-cut", half(&good)),
        ("malformed.component-cut", half(&component)),
        ("malformed.component-type", damaged),
        ("malformed.header", b"\0asm".to_vec()),
        ("core-without-contract.empty", Module::new().finish()),
        ("no-provider.empty", b"\0asm\x0d\0\x01\0".to_vec()),
        ("not-wasm.text", b"<!DOCTYPE html>\n<html>Not found</html>".to_vec()),
        ("not-wasm.empty", vec![]),
        ("native.header", [&b"\x7fELF\x02\x01\x01"[..], &[0; 57]].concat()),
    ];
    let packed: Vec<u8> = pack("seed", &[0; (1 << 20) + 1]).into_iter().flat_map(|(_, bytes)| bytes).collect();
    let upload = |first: u8, bytes: &[u8]| [&[first], bytes].concat();
    let uploads = [
        ("joined.plain", upload(4, &good)),
        ("joined.zstd", upload(5, &packed)),
        ("not-zstd.cut", upload(1, &half(&packed))),
        ("not-zstd.text", upload(1, b"nonsense")),
    ];
    for (target, all) in [("load", &seeds[..]), ("parts", &uploads[..])] {
        let folder = folder(target);
        fs::create_dir_all(&folder).expect("the folder of the seeds");
        all.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).expect("written"));
    }
}
