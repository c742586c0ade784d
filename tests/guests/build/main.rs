//! Derives other contracts from `wit/`, and a provider that breaks rules from the one that `plugin new` writes, so that
//! no stale copy of either stands anywhere.

mod rules;

use std::fs;
use std::path::{Path, PathBuf};

const WIT: &str = "../../wit/provider.wit";
const TEMPLATE: &str = "../../plugins/template/src";

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed={TEMPLATE}");
    println!("cargo::rerun-if-changed={WIT}");
    let wit = fs::read_to_string(WIT).expect("the contract");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));

    write(&out.join("wit-0.2"), &replace(&wit, "package crawl:provider@0.1.0;", "package crawl:provider@0.2.0;"));

    // The next release of this one: a function more.
    let later = replace(&wit, "package crawl:provider@0.1.0;", "package crawl:provider@0.1.1;");
    let clock = "  remaining-ms: func() -> u32;\n";
    write(
        &out.join("wit-0.1.1"),
        &replace(&later, clock, &format!("{clock}\n  /// What 0.1.0 has not.\n  later: func() -> u32;\n")),
    );

    let imported = replace(&wit, "  import random;\n", "  import random;\n  import teleport;\n");
    let teleport = "\n/// What no host has.\ninterface teleport {\n  /// Beams.\n  beam: func() -> string;\n}\n";
    write(&out.join("wit-teleport"), &(imported + teleport));

    let read = |file: &str| fs::read_to_string(format!("{TEMPLATE}/{file}")).expect("the template");
    fs::write(out.join("rulebreaker.rs"), rules::derive(&read("lib.rs"), read)).expect("the derived provider");
}

fn replace(wit: &str, from: &str, to: &str) -> String {
    assert_eq!(wit.matches(from).count(), 1, "{WIT} has no longer one line {from:?}; adapt this script");
    wit.replace(from, to)
}

fn write(folder: &Path, wit: &str) {
    fs::create_dir_all(folder).expect("a folder for the derived contract");
    fs::write(folder.join("provider.wit"), wit).expect("the derived contract");
}
