//! Which packages of a core module's type information use which. Found without wit-parser, which follows uses that run in a
//! circle until the stack overflows, and with it goes the whole operator.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use wasmparser::component_types::ComponentEntityType::{self, Type};
use wasmparser::component_types::{ComponentAnyTypeId, ComponentInstanceTypeId, ComponentItem};
use wasmparser::types::Types;
use wasmparser::{BinaryReaderError, Parser, Payload, Validator, WasmFeatures};

/// Uses of packages, over all sections of type information of one module.
#[derive(Default)]
pub(super) struct Packages {
    uses: BTreeMap<String, BTreeSet<String>>,
}

/// One section.
struct Section<'a> {
    types: Types,
    /// Who brought a type first: whoever shows it later uses it.
    owners: HashMap<ComponentAnyTypeId, String>,
    packages: &'a mut Packages,
}

impl Packages {
    /// Takes in a section. Its own nesting is bounded by the validator.
    ///
    /// # Errors
    /// When it is no component.
    pub fn add(&mut self, section: &[u8]) -> Result<(), BinaryReaderError> {
        let types = Validator::new_with_features(WasmFeatures::all()).validate_all(section)?;
        let mut this = Section { types, owners: HashMap::new(), packages: self };
        let mut depth = 0u32;
        for payload in Parser::new(0).parse_all(section) {
            match payload? {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(imports) if depth == 0 => {
                    for import in imports {
                        let name = import?.name.name;
                        let item = this.types.as_ref().component_item_for_import(name).cloned();
                        this.item(None, name, item);
                    }
                }
                Payload::ComponentExportSection(exports) if depth == 0 => {
                    for export in exports {
                        let name = export?.name.name;
                        let item = this.types.as_ref().component_item_for_export(name).cloned();
                        this.item(None, name, item);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.uses.len()
    }

    /// Whether some use each other in a circle.
    pub fn run_in_a_circle(mut self) -> bool {
        let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (user, used) in &self.uses {
            used.iter().for_each(|used| users.entry(used.clone()).or_default().push(user.clone()));
        }
        let mut settled: Vec<_> =
            self.uses.iter().filter(|(_, used)| used.is_empty()).map(|(name, _)| name.clone()).collect();
        while let Some(name) = settled.pop() {
            self.uses.remove(&name);
            for user in users.remove(&name).unwrap_or_default() {
                if let Some(used) = self.uses.get_mut(&user)
                    && used.remove(&name)
                    && used.is_empty()
                {
                    settled.push(user);
                }
            }
        }
        !self.uses.is_empty()
    }

    fn note(&mut self, package: &str, used: &str) {
        self.uses.entry(used.to_owned()).or_default();
        let uses = self.uses.entry(package.to_owned()).or_default();
        if package != used {
            uses.insert(used.to_owned());
        }
    }
}

impl Section<'_> {
    /// An interface or a world, which type information gives as types; `world`: the package of the world that it is an import or export of.
    fn item(&mut self, world: Option<&str>, name: &str, item: Option<ComponentItem>) {
        let package = package_of(name);
        match item.map(|item| item.ty) {
            Some(ComponentEntityType::Instance(id) | Type { referenced: ComponentAnyTypeId::Instance(id), .. }) => {
                let Some(package) = package else { return };
                self.packages.note(world.unwrap_or(&package), &package);
                self.interface(&package, id);
            }
            Some(ComponentEntityType::Component(id) | Type { referenced: ComponentAnyTypeId::Component(id), .. }) => {
                let component = &self.types[id];
                let items = component.imports.iter().chain(&component.exports);
                let items: Vec<_> = items.map(|(name, item)| (name.clone(), item.clone())).collect();
                for (name, item) in items {
                    self.item(package.as_deref().or(world), &name, Some(item));
                }
            }
            _ => {}
        }
    }

    fn interface(&mut self, package: &str, id: ComponentInstanceTypeId) {
        let shown: Vec<_> = self.types[id].exports.values().map(|item| item.ty).collect();
        for shown in shown {
            let Type { referenced, created } = shown else { continue };
            for first in [referenced, created] {
                let mut next = Some(first);
                while let Some(id) = next {
                    match self.owners.entry(id) {
                        // What is behind this one, its owner uses already: followed again and again, a long row of names takes
                        // minutes.
                        Entry::Occupied(owner) => {
                            self.packages.note(package, owner.get());
                            break;
                        }
                        Entry::Vacant(first) => drop(first.insert(package.to_owned())),
                    }
                    next = self.types.as_ref().peel_alias(id);
                }
            }
        }
    }
}

/// `crawl:provider@0.1.0` of `crawl:provider/http@0.1.0`.
fn package_of(name: &str) -> Option<String> {
    let (package, rest) = name.split_once('/')?;
    let version = rest.split_once('@').map_or("", |(_, version)| version);
    Some(format!("{package}@{version}"))
}
