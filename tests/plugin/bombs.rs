//! Files of a few kilobytes that would take all memory, hours, or the stack: the operator refuses them, and goes on.

use std::fs;
use std::process::Command;

use proxy_operator::plugin::compiler::need;
use proxy_operator::plugin::contract;
use proxy_operator::plugin::engine::{CodeError, Exceeded, Origin, Runtime};
use proxy_operator_tests::plugins::{bytes_of, loader};
use proxy_operator_tests::root;
use serde_json::{Map, json};
use wasm_encoder::{
    Alias, BlockType, CodeSection, Component, ComponentExportKind, ComponentExportSection, ComponentOuterAliasKind,
    ComponentType, ComponentTypeRef, ComponentTypeSection, ComponentValType, CustomSection, Function, FunctionSection,
    InstanceType, Module, ModuleSection, PrimitiveValType, TypeBounds, TypeSection, ValType,
};

use crate::seeds::Core;

/// On the stack of a thread of the runtime. One that overflows ends the whole process.
fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn_scoped(scope, work);
        thread.expect("a thread").join().expect("no panic")
    })
}

/// A section of type information about this world.
fn type_information(world: &ComponentType) -> Vec<u8> {
    let mut outer = ComponentType::new();
    outer.ty().component(world);
    outer.export("x:w/w", ComponentTypeRef::Component(0));
    let (mut types, mut exports) = (ComponentTypeSection::new(), ComponentExportSection::new());
    types.component(&outer);
    exports.export("w", ComponentExportKind::Type, 0, None);
    let encoding = CustomSection { name: "wit-component-encoding".into(), data: (&[4u8, 0][..]).into() };
    let mut component = Component::new();
    component.section(&encoding).section(&types).section(&exports);
    component.finish()
}

/// Wraps a core module with these sections; the refusal, if any.
fn wrapped(sections: impl Iterator<Item = Vec<u8>>) -> Option<String> {
    let mut module = Module::new();
    for data in sections {
        module.section(&CustomSection { name: "component-type".into(), data: (&data).into() });
    }
    let bytes = module.finish();
    on_small_stack(|| contract::wrap(&bytes).err().map(|error| error.to_string()))
}

/// Packages from the first number on, each of which uses the one before.
fn row_of_packages(first: usize, count: usize) -> Vec<u8> {
    let mut world = ComponentType::new();
    let mut before = None;
    for number in first..first + count {
        let mut interface = InstanceType::new();
        match before {
            None => interface.ty().defined_type().record([("a", ComponentValType::Primitive(PrimitiveValType::U8))]),
            Some(index) => {
                interface.alias(Alias::Outer { kind: ComponentOuterAliasKind::Type, count: 1, index });
            }
        }
        interface.export("t", ComponentTypeRef::Type(TypeBounds::Eq(0)));
        let ty = world.type_count();
        world.ty().instance(&interface);
        // Sorted against their order: what is looked for from the front is at the end.
        world.import(format!("a:p{:06}/i", 999_999 - number), ComponentTypeRef::Instance(ty));
        before = Some(world.type_count());
        let (instance, kind) = (world.instance_count() - 1, ComponentExportKind::Type);
        world.alias(Alias::InstanceExport { instance, kind, name: "t" });
    }
    type_information(&world)
}

#[test]
fn a_row_of_packages_that_use_each_other_is_followed_or_refused() {
    assert_eq!(wrapped([row_of_packages(0, 480)].into_iter()), None);
    for sections in [1, 10, 300] {
        let refused = wrapped((0..sections).map(|n| row_of_packages(n * 100_000 / sections, 990 / sections.min(9))));
        assert!(refused.as_ref().is_some_and(|why| why.contains("over 500 packages")), "{sections}: {refused:?}");
    }
}

#[test]
fn a_long_row_of_names_for_one_type_is_followed_once() {
    let mut interface = InstanceType::new();
    interface.ty().defined_type().record([("a", ComponentValType::Primitive(PrimitiveValType::U8))]);
    for number in 0..40_000 {
        interface.export(format!("t{number}"), ComponentTypeRef::Type(TypeBounds::Eq(number)));
    }
    let mut world = ComponentType::new();
    world.ty().instance(&interface);
    world.import("a:p/i", ComponentTypeRef::Instance(0));
    assert_eq!(wrapped([type_information(&world)].into_iter()), None);
}

#[test]
fn components_within_components_are_no_type_information() {
    for exports in [&["a"][..], &["a", "b"]] {
        let mut world = ComponentType::new();
        world.ty().component(&ComponentType::new());
        for index in 0..18 {
            let mut inner = ComponentType::new();
            inner.alias(Alias::Outer { kind: ComponentOuterAliasKind::Type, count: 1, index });
            for name in exports {
                inner.export(*name, ComponentTypeRef::Component(0));
            }
            world.ty().component(&inner);
        }
        world.import("a:p/i", ComponentTypeRef::Component(18));
        let refused = wrapped([type_information(&world)].into_iter()).expect("it is refused");
        assert!(refused.contains("is not an instance"), "{refused}");
    }
}

#[tokio::test]
async fn a_schema_that_doubles_with_each_line_is_refused_at_load() {
    let mut defs = Map::new();
    for line in 0..18 {
        let next = json!({"$ref": format!("#/$defs/d{}", line + 1)});
        defs.insert(format!("d{line}"), json!({"allOf": [next, next]}));
    }
    defs.insert("d18".into(), json!({"type": "string"}));
    let schema = json!({"$defs": defs, "$ref": "#/$defs/d0"}).to_string();
    let wit = std::fs::read_to_string(root().join("wit/provider.wit")).expect("the contract");
    for (schema, capabilities, expected) in [
        (schema.as_str(), 0, "bad answer: config-schema has over 5000 parts"),
        (&" ".repeat(200_000), 0, "bad answer: config-schema has 200000 bytes"),
        ("{}", 65, "bad answer: over 64 connections, connection pointers or capabilities"),
    ] {
        let core = Core { wit: &wit, name: Some("seed"), import: None, schema, capabilities }.build();
        let refused = loader().load("seed", core).await.err().expect("it is refused").to_string();
        assert!(refused.contains(expected) && refused.contains("plugin seed, describe"), "{refused}");
    }
}

/// A function of loops within loops, in which each of the locals is used.
fn loops(locals: u32, loops: u32) -> Vec<u8> {
    let (mut types, mut functions, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], []);
    functions.function(0);
    let mut body = Function::new([(locals, ValType::I64)]);
    let mut ins = body.instructions();
    for local in 0..locals {
        ins.i64_const(local.into()).local_set(local);
    }
    for _ in 0..loops {
        ins.loop_(BlockType::Empty);
    }
    for turn in 0..loops {
        ins.local_get(turn % locals).i64_const(1).i64_add().local_set((turn * 7) % locals);
        ins.i32_const(0).br_if(0).end();
    }
    for local in 0..locals {
        ins.local_get(local).drop();
    }
    ins.end();
    code.function(&body);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&code);
    let mut component = Component::new();
    component.section(&ModuleSection(&module));
    component.finish()
}

fn apart() -> Runtime {
    Runtime::new(None).expect("an engine").with_compiler(root().join("bin/proxy-operator"), u64::MAX)
}

#[test]
fn a_compiler_that_takes_too_much_is_stopped_with_the_figures() {
    // The second with little code.
    for (locals, depth) in [(20_000, 1_000), (1_000, 1_000)] {
        let component = loops(locals, depth);
        contract::validate(&component).expect("it is sound");
        let code = contract::code_bytes(&component);
        assert!(code < 300 << 10 && need(code) < 64 << 20, "{code} bytes");
        let over = Exceeded::Memory { mib: ((need(code) * 3 / 2) >> 20) + 40 };
        let refused = apart().code("digest", &component).expect_err("it is refused");
        assert!(matches!(refused, CodeError::Costly(found) if found == over), "{refused}");
        assert!(refused.to_string().contains(&format!("takes over {over}, ")), "{refused}");
    }
    // With all the memory it wants it computes for many seconds.
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), loops(1, 2_000)).unwrap();
    let mut compiler = Command::new(root().join("bin/proxy-operator"));
    compiler.args(["plugin", "compile-here", "--seconds", "1", "--memory", &(4u64 << 30).to_string()]);
    let ended = compiler.stdin(file.reopen().unwrap()).output().unwrap().status;
    assert!(ended.to_string().contains("SIGXCPU"), "{ended}");
}

/// What comes of a compiler that is a script; it reads all first.
fn compiled_by(script: &str) -> CodeError {
    let dir = tempfile::tempdir().unwrap();
    let (written, program) = (dir.path().join("written"), dir.path().join("compiler"));
    fs::write(&written, format!("#!/bin/sh\ncat >/dev/null\n{script}\n")).unwrap();
    // By another process: what this one has open for writing, a test beside this one may pass on to a child of its own.
    let installed = Command::new("install").args(["-m", "700"]).args([&written, &program]).status();
    assert!(installed.is_ok_and(|status| status.success()));
    let runtime = Runtime::new(None).unwrap().with_compiler(program, u64::MAX);
    runtime.code("digest", b"\0asm").expect_err(script)
}

/// A refusal for its cost once named limits that nothing had met.
#[test]
fn a_compiler_that_dies_of_something_else_is_told_by_its_signal_and_last_words() {
    for (script, says) in [
        ("echo first >&2; echo its last words >&2; kill -KILL $$", "(signal: 9 (SIGKILL): its last words)"),
        ("kill -SEGV $$", "(signal: 11 (SIGSEGV)"),
        ("echo stack overflow >&2; kill -ABRT $$", "(signal: 6 (SIGABRT): stack overflow)"),
        ("echo no such library >&2; exit 3", "(exit status: 3: no such library)"),
        // More than a pipe holds.
        ("i=0; while [ $i -lt 9000 ]; do echo line $i >&2; i=$((i+1)); done; kill -KILL $$", "line 8999"),
    ] {
        let refused = compiled_by(script);
        assert!(matches!(refused, CodeError::Died { .. }), "{script}: {refused}");
        assert!(refused.to_string().contains(says), "{script}: {refused}");
    }
    // The signals of the limits are told as such.
    for (script, says) in [
        ("kill -XCPU $$", "over 10 s of CPU, "),
        ("kill -ALRM $$", "over 200 s, with less of the CPU"),
        (
            "echo memory allocation of 8 bytes failed >&2; echo note: run with more >&2; kill -ABRT $$",
            " MiB of memory, ",
        ),
    ] {
        let refused = compiled_by(script);
        assert!(matches!(refused, CodeError::Costly(_)) && refused.to_string().contains(says), "{script}: {refused}");
    }
}

#[test]
fn code_that_the_engine_does_not_take_is_refused_as_that() {
    let refused = compiled_by("printf +nonsense");
    assert!(matches!(refused, CodeError::Load(_)), "{refused}");
    assert!(refused.to_string().contains("its compiled code cannot be loaded"), "{refused}");
}

#[test]
fn every_plugin_and_guest_compiles_where_there_is_just_what_its_size_says() {
    let folders =
        ["bin/plugins", "bin/guests"].map(|folder| fs::read_dir(root().join(folder)).expect("they are built"));
    let files = folders.into_iter().flatten().map(|entry| entry.expect("a file").path());
    let mut compiled = 0;
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "wasm")) {
        let bytes = fs::read(&file).expect("a file");
        // One guest is no component.
        let Ok(component) = contract::component(&bytes) else { continue };
        let (program, most) = (root().join("bin/proxy-operator"), need(contract::code_bytes(&component)));
        let outcome = Runtime::new(None).unwrap().with_compiler(program, most).code("digest", &component);
        assert!(outcome.is_ok(), "{}: {}", file.display(), outcome.err().unwrap());
        compiled += 1;
    }
    assert!(compiled > 15, "{compiled}");
}

#[test]
fn what_is_compiled_apart_is_the_same_and_so_are_refusals() {
    let echo = contract::check(&bytes_of("echo")).expect("a plugin").component.into_owned();
    let (_, origin) = apart().code("digest", &echo).expect("it compiles");
    assert_eq!(origin, Origin::Compiled);
    let (here, there) = (Runtime::new(None).unwrap().code("digest", b"\0asm"), apart().code("digest", b"\0asm"));
    let (here, there) = (here.expect_err("no component"), there.expect_err("no component"));
    assert!(matches!(here, CodeError::Compile(_)), "{here}");
    assert_eq!(here.to_string(), there.to_string());
    let nowhere = Runtime::new(None).unwrap().with_compiler("/nowhere".into(), u64::MAX);
    assert!(nowhere.code("digest", &echo).is_ok(), "without a process it goes on as before");
}
