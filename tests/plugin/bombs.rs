//! scratch
use std::time::Instant;

use proxy_operator::plugin::contract;
use wasm_encoder::*;

fn peak() -> u64 {
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    s.lines().find(|l| l.starts_with("VmHWM")).unwrap().split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

fn on_small_stack(what: &str, work: impl FnOnce() -> String + Send) {
    let started = Instant::now();
    let out = std::thread::scope(|s| {
        std::thread::Builder::new().stack_size(2 << 20).spawn_scoped(s, work).unwrap().join().unwrap()
    });
    println!("{what}: {:?} peak {} MiB: {}", started.elapsed(), peak(), out.chars().take(200).collect::<String>());
}

fn module_with(section: &[u8]) -> Vec<u8> {
    let mut module = Module::new();
    module.section(&CustomSection { name: "component-type".into(), data: section.into() });
    module.finish()
}

fn metadata(world: ComponentType) -> Vec<u8> {
    let mut outer = ComponentType::new();
    outer.ty().component(&world);
    outer.export("x:w/w", ComponentTypeRef::Component(0));
    let mut types = ComponentTypeSection::new();
    types.component(&outer);
    let mut exports = ComponentExportSection::new();
    exports.export("w", ComponentExportKind::Type, 0, None);
    let mut component = Component::new();
    component.section(&CustomSection { name: "wit-component-encoding".into(), data: (&[4u8, 0][..]).into() });
    component.section(&types);
    component.section(&exports);
    component.finish()
}

fn n() -> u32 {
    std::env::var("N").ok().map_or(1000, |n| n.parse().unwrap())
}

fn chain(n: u32) -> ComponentType {
    let mut world = ComponentType::new();
    let mut last: Option<u32> = None;
    for i in 0..n {
        let mut iface = InstanceType::new();
        match last {
            None => {
                iface.ty().defined_type().record([("a", ComponentValType::Primitive(PrimitiveValType::U8))]);
            }
            Some(at) => {
                iface.alias(Alias::Outer { kind: ComponentOuterAliasKind::Type, count: 1, index: at });
            }
        }
        iface.export("t", ComponentTypeRef::Type(TypeBounds::Eq(0)));
        let ty = world.type_count();
        world.ty().instance(&iface);
        world.import(&format!("a:p{:06}/i", n - i), ComponentTypeRef::Instance(ty));
        let at = world.type_count();
        world.alias(Alias::InstanceExport {
            instance: world.instance_count() - 1,
            kind: ComponentExportKind::Type,
            name: "t",
        });
        last = Some(at);
    }
    world
}

#[test]
fn a_chain() {
    let bytes = module_with(&metadata(chain(n())));
    println!("{} bytes", bytes.len());
    on_small_stack("chain", || format!("{:?}", contract::wrap(&bytes).map(|c| c.len())));
}

#[test]
fn a_chain_of_sections() {
    let mut module = Module::new();
    for k in 0..n() {
        let mut world = ComponentType::new();
        let mut last: Option<u32> = None;
        for i in 0..100u32 {
            let mut iface = InstanceType::new();
            match last {
                None => {
                    iface.ty().defined_type().record([("a", ComponentValType::Primitive(PrimitiveValType::U8))]);
                }
                Some(at) => {
                    iface.alias(Alias::Outer { kind: ComponentOuterAliasKind::Type, count: 1, index: at });
                }
            }
            iface.export("t", ComponentTypeRef::Type(TypeBounds::Eq(0)));
            let ty = world.type_count();
            world.ty().instance(&iface);
            world.import(
                &format!("a:p{:06}/i{}", k * 99 + i, if i == 0 { "x" } else { "" }),
                ComponentTypeRef::Instance(ty),
            );
            let at = world.type_count();
            world.alias(Alias::InstanceExport {
                instance: world.instance_count() - 1,
                kind: ComponentExportKind::Type,
                name: "t",
            });
            last = Some(at);
        }
        let data = metadata(world);
        module.section(&CustomSection { name: "component-type".into(), data: (&data).into() });
    }
    let bytes = module.finish();
    println!("{} bytes", bytes.len());
    on_small_stack("chain of sections", || format!("{:?}", contract::wrap(&bytes).map(|c| c.len())));
}

#[test]
fn b_aliases() {
    let mut world = ComponentType::new();
    let mut iface = InstanceType::new();
    iface.ty().defined_type().record([("a", ComponentValType::Primitive(PrimitiveValType::U8))]);
    iface.export("t0", ComponentTypeRef::Type(TypeBounds::Eq(0)));
    for i in 1..n() {
        iface.export(&format!("t{i}"), ComponentTypeRef::Type(TypeBounds::Eq(i)));
    }
    world.ty().instance(&iface);
    world.import("a:p/i", ComponentTypeRef::Instance(0));
    let bytes = module_with(&metadata(world));
    println!("{} bytes", bytes.len());
    on_small_stack("aliases", || format!("{:?}", contract::wrap(&bytes).map(|c| c.len())));
}

fn deep(n: u32) -> InstanceType {
    let mut iface = InstanceType::new();
    iface.ty().defined_type().list(ComponentValType::Primitive(PrimitiveValType::U8));
    for i in 1..n {
        iface.ty().defined_type().list(ComponentValType::Type(i - 1));
    }
    iface.export("t", ComponentTypeRef::Type(TypeBounds::Eq(n - 1)));
    iface
}

#[test]
fn c_deep_core() {
    let mut world = ComponentType::new();
    world.ty().instance(&deep(n()));
    world.import("a:p/i", ComponentTypeRef::Instance(0));
    let bytes = module_with(&metadata(world));
    println!("{} bytes", bytes.len());
    on_small_stack("deep core", || format!("{:?}", contract::wrap(&bytes).map(|c| c.len())));
}

#[test]
fn d_deep_component() {
    let mut types = ComponentTypeSection::new();
    types.instance(&deep(n()));
    let mut imports = ComponentImportSection::new();
    imports.import("crawl:provider/log@0.1.0", ComponentTypeRef::Instance(0));
    let mut component = Component::new();
    component.section(&types).section(&imports);
    let mut exports = ComponentExportSection::new();
    exports.export("crawl:provider/provider@0.1.0", ComponentExportKind::Instance, 0, None);
    component.section(&exports);
    let bytes = component.finish();
    println!("{} bytes", bytes.len());
    on_small_stack("deep component", || {
        let checked = contract::check(&bytes).map(|c| c.contract.len());
        let valid = contract::validate(&bytes);
        let runtime = proxy_operator::plugin::engine::Runtime::new(None).unwrap();
        let code = runtime.code("d", &bytes).map(|_| ());
        format!("{checked:?} {valid:?} {code:?}")
    });
}

#[test]
fn e_nested_components() {
    // each exports two of the one before
    let mut world = ComponentType::new();
    world.ty().component(&ComponentType::new());
    for i in 1..n() {
        let mut ty = ComponentType::new();
        ty.alias(Alias::Outer { kind: ComponentOuterAliasKind::Type, count: 1, index: i - 1 });
        ty.export("a", ComponentTypeRef::Component(0));
        if std::env::var("TWO").is_ok() {
            ty.export("b", ComponentTypeRef::Component(0));
        }
        world.ty().component(&ty);
    }
    world.import("a:p/i", ComponentTypeRef::Component(n() - 1));
    let bytes = module_with(&metadata(world));
    println!("{} bytes", bytes.len());
    on_small_stack("nested", || format!("{:?}", contract::wrap(&bytes).map(|c| c.len())));
}

#[test]
fn f_schema() {
    use proxy_operator::model::instance::check_schema;
    use serde_json::json;
    on_small_stack("self ref", || format!("{:?}", check_schema(&json!({"$ref": "#"}), &json!({"a": 1}), "/config")));
    on_small_stack("self ref in allOf", || {
        format!("{:?}", check_schema(&json!({"allOf": [{"$ref": "#"}]}), &json!({"a": 1}), "/config"))
    });
    on_small_stack("circle", || {
        format!(
            "{:?}",
            check_schema(
                &json!({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}),
                &json!({"a": 1}),
                "/config"
            )
        )
    });
    on_small_stack("not", || {
        format!("{:?}", check_schema(&json!({"not": {"$ref": "#"}}), &json!({"a": 1}), "/config"))
    });
    on_small_stack("dynamic", || {
        format!(
            "{:?}",
            check_schema(
                &json!({"$dynamicAnchor": "x", "allOf": [{"$dynamicRef": "#x"}]}),
                &json!({"a": 1}),
                "/config"
            )
        )
    });
    on_small_stack("file", || {
        format!("{:?}", check_schema(&json!({"$ref": "file:///etc/passwd"}), &json!({"a": 1}), "/config"))
    });
    on_small_stack("http", || {
        format!("{:?}", check_schema(&json!({"$ref": "http://127.0.0.1:1/x"}), &json!({"a": 1}), "/config"))
    });
}

#[test]
fn g_schema_blow() {
    use proxy_operator::model::instance::check_schema;
    use serde_json::{Map, Value, json};
    let mut defs = Map::new();
    let n = n();
    for i in 0..n {
        let next = format!("#/$defs/d{}", i + 1);
        defs.insert(format!("d{i}"), json!({"allOf": [{"$ref": next}, {"$ref": next}]}));
    }
    defs.insert(format!("d{n}"), json!({"type": "string"}));
    let schema = json!({"$defs": Value::Object(defs), "$ref": "#/$defs/d0"});
    on_small_stack("exponential", || {
        format!("{:?}", check_schema(&schema, &json!({"a": 1}), "/config").map_err(|e| e.len()))
    });
}

#[test]
fn h_schema_chain() {
    use proxy_operator::model::instance::check_schema;
    use serde_json::{Map, Value, json};
    let mut defs = Map::new();
    let n = n();
    for i in 0..n {
        let next = format!("#/$defs/d{}", i + 1);
        defs.insert(format!("d{i}"), json!({"$ref": next}));
    }
    defs.insert(format!("d{n}"), json!({"type": "string"}));
    let schema = json!({"$defs": Value::Object(defs), "$ref": "#/$defs/d0"});
    println!("{} bytes", schema.to_string().len());
    on_small_stack("chain", || {
        format!("{:?}", check_schema(&schema, &json!({"a": 1}), "/config").map_err(|e| e.len()))
    });
}

#[test]
fn i_big_schema() {
    let text = format!("{{\"default\":[{}0]}}", "0,".repeat((4 << 20) - 20));
    on_small_stack("big", || {
        let v: serde_json::Value = serde_json::from_str(&text).unwrap();
        let r = format!("{:?}", proxy_operator::model::instance::check_schema(&v, &serde_json::json!({}), ""));
        r
    });
}

#[test]
fn j_pattern() {
    use proxy_operator::model::instance::check_schema;
    use serde_json::json;
    let s = "a".repeat(200);
    on_small_stack("pattern", || {
        format!(
            "{:?}",
            check_schema(&json!({"pattern": "^(a|aa)+$"}), &json!(format!("{s}!")), "").map_err(|e| e.len())
        )
    });
    on_small_stack("look", || {
        format!(
            "{:?}",
            check_schema(&json!({"pattern": "^(?=((a|aa)+))(a|aa)+(?!b)\\2x$"}), &json!(format!("{s}!")), "")
                .map_err(|e| e.len())
        )
    });
    on_small_stack("large", || {
        format!(
            "{:?}",
            check_schema(&json!({"pattern": "((a{1000}){1000}){1000}"}), &json!(format!("{s}!")), "")
                .map_err(|e| e.len())
        )
    });
    let many: Vec<_> = (0..n()).map(|i| json!({"pattern": format!("(\\w{{100}}){{40}}x{i}")})).collect();
    on_small_stack("many", || {
        format!("{:?}", check_schema(&json!({"allOf": many}), &json!(format!("{s}!")), "").map_err(|e| e.len()))
    });
}

#[test]
fn k_zstd() {
    use proxy_operator::plugin::source::upload::unpack;
    // magic, descriptor (no single segment, no checksum), window descriptor, one RLE block of the largest size, many times
    for wd in [0x88u8, 0x90] {
        let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, wd];
        for i in 0..n() {
            let last = u32::from(i + 1 == n());
            let header = last | (1 << 1) | ((128 << 10) << 3);
            bytes.extend(&header.to_le_bytes()[..3]);
            bytes.push(0);
        }
        on_small_stack("zstd", || format!("{:?}", unpack(true, &[bytes.clone()]).map(|b| b.len())));
    }
}

#[test]
fn l_adapters() {
    // a component with n functions lifted in one sub-component and lowered in another
    let n = n();
    let mut a = Component::new();
    let mut module = Module::new();
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32, ValType::I32], []);
    types.ty().function([ValType::I32; 4], [ValType::I32]);
    let mut functions = FunctionSection::new();
    functions.function(0).function(1);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None });
    let mut exports = ExportSection::new();
    exports.export("f", ExportKind::Func, 0).export("r", ExportKind::Func, 1).export("m", ExportKind::Memory, 0);
    let mut code = CodeSection::new();
    let mut f = Function::new([]);
    f.instructions().end();
    code.function(&f);
    let mut f = Function::new([]);
    f.instructions().unreachable().end();
    code.function(&f);
    module.section(&types).section(&functions).section(&memories).section(&exports).section(&code);
    let module_section = ModuleSection(&module);
    a.section(&module_section);
    let mut instances = InstanceSection::new();
    instances.instantiate::<[(&str, ModuleArg); 0], &str>(0, []);
    a.section(&instances);
    let mut aliases = ComponentAliasSection::new();
    aliases.alias(Alias::CoreInstanceExport { instance: 0, kind: ExportKind::Func, name: "f" });
    aliases.alias(Alias::CoreInstanceExport { instance: 0, kind: ExportKind::Func, name: "r" });
    aliases.alias(Alias::CoreInstanceExport { instance: 0, kind: ExportKind::Memory, name: "m" });
    a.section(&aliases);
    let mut tys = ComponentTypeSection::new();
    tys.function().params([("x", ComponentValType::Primitive(PrimitiveValType::String))]).result(None);
    a.section(&tys);
    let mut canons = CanonicalFunctionSection::new();
    canons.lift(0, 0, [CanonicalOption::Memory(0), CanonicalOption::Realloc(1)]);
    a.section(&canons);
    let mut exports = ComponentExportSection::new();
    exports.export("f", ComponentExportKind::Func, 0, None);
    a.section(&exports);

    let mut b = Component::new();
    b.section(&tys);
    let mut imports = ComponentImportSection::new();
    imports.import("f", ComponentTypeRef::Func(0));
    b.section(&imports);
    // module with memory, then module importing n functions
    let mut mem = Module::new();
    let mut ex = ExportSection::new();
    ex.export("m", ExportKind::Memory, 0);
    mem.section(&memories).section(&ex);
    b.section(&ModuleSection(&mem));
    let mut ins = InstanceSection::new();
    ins.instantiate::<[(&str, ModuleArg); 0], &str>(0, []);
    b.section(&ins);
    let mut al = ComponentAliasSection::new();
    al.alias(Alias::CoreInstanceExport { instance: 0, kind: ExportKind::Memory, name: "m" });
    b.section(&al);
    let mut ca = CanonicalFunctionSection::new();
    for _ in 0..n {
        ca.lower(0, [CanonicalOption::Memory(0)]);
    }
    b.section(&ca);
    let mut user = Module::new();
    let mut ut = TypeSection::new();
    ut.ty().function([ValType::I32, ValType::I32], []);
    let mut ui = ImportSection::new();
    let names: Vec<String> = (0..n).map(|i| format!("{i}")).collect();
    for name in &names {
        ui.import("e", name, EntityType::Function(0));
    }
    user.section(&ut).section(&ui);
    b.section(&ModuleSection(&user));
    let mut ins = InstanceSection::new();
    ins.export_items(names.iter().enumerate().map(|(i, name)| (name.as_str(), ExportKind::Func, i as u32)));
    ins.instantiate(1, [("e", ModuleArg::Instance(1))]);
    b.section(&ins);

    let mut c = Component::new();
    c.section(&NestedComponentSection(&a)).section(&NestedComponentSection(&b));
    let mut ci = ComponentInstanceSection::new();
    ci.instantiate::<[(&str, ComponentExportKind, u32); 0], &str>(0, []);
    c.section(&ci);
    let mut cal = ComponentAliasSection::new();
    cal.alias(Alias::InstanceExport { instance: 0, kind: ComponentExportKind::Func, name: "f" });
    c.section(&cal);
    let mut ci = ComponentInstanceSection::new();
    ci.instantiate(1, [("f", ComponentExportKind::Func, 0)]);
    c.section(&ci);
    let bytes = c.finish();
    println!("{} bytes, code {}", bytes.len(), contract::code_bytes(&bytes));
    on_small_stack("adapters", || {
        let valid = contract::validate(&bytes);
        let runtime = proxy_operator::plugin::engine::Runtime::new(None).unwrap();
        let code = runtime.code("d", &bytes).map(|_| ());
        format!("{valid:?} {code:?}")
    });
}

#[test]
fn m_cranelift() {
    // many locals, many loops
    let n = n();
    let mut module = Module::new();
    let mut types = TypeSection::new();
    types.ty().function([], []);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let locals: u32 = std::env::var("LOCALS").ok().map_or(20000, |n| n.parse().unwrap());
    let mut f = Function::new([(locals, ValType::I64)]);
    let mut ins = f.instructions();
    for l in 0..locals {
        ins.i64_const(i64::from(l)).local_set(l);
    }
    for _ in 0..n {
        ins.loop_(BlockType::Empty);
    }
    for i in 0..n {
        ins.local_get(i % locals).i64_const(1).i64_add().local_set((i * 7) % locals);
        ins.i32_const(0).br_if(0).end();
    }
    for l in 0..locals {
        ins.local_get(l).drop();
    }
    ins.end();
    let mut code = CodeSection::new();
    code.function(&f);
    module.section(&types).section(&functions).section(&code);
    let mut c = Component::new();
    c.section(&ModuleSection(&module));
    let bytes = c.finish();
    println!(
        "{} bytes, need {}",
        bytes.len(),
        proxy_operator::plugin::compiler::need(contract::code_bytes(&bytes)) >> 20
    );
    on_small_stack("cranelift", || {
        let valid = contract::validate(&bytes);
        let runtime = proxy_operator::plugin::engine::Runtime::new(None).unwrap();
        let code = runtime.code("d", &bytes).map(|_| ());
        format!("{valid:?} {code:?}")
    });
}
