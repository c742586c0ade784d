//! Derives the next release of the contract, for a host that serves it: one more imported function, and one more interface
//! that a plugin may export.

use std::fs;
use std::path::PathBuf;

const WIT: &str = "../wit/provider.wit";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={WIT}");
    let mut wit = fs::read_to_string(WIT).expect("the contract");
    let clock = "  remaining-ms: func() -> u32;\n";
    for (from, to) in [
        ("package crawl:provider@0.1.0;", "package crawl:provider@0.1.1;".to_owned()),
        (clock, format!("{clock}\n  /// What 0.1.0 has not.\n  later: func() -> u32;\n")),
    ] {
        assert_eq!(wit.matches(from).count(), 1, "{WIT} has no longer one line {from:?}; adapt this script");
        wit = wit.replace(from, &to);
    }
    wit += "\n/// What a plugin may export.\ninterface hints {\n  /// A word.\n  hint: func() -> string;\n}\n";
    let bindgen = format!(
        "wasmtime::component::bindgen!({{ inline: r####\"{wit}\"####, world: \"plugin\", imports: {{ default: trappable }}, exports: {{ default: async }} }});\n"
    );
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    fs::write(out.join("next_release.rs"), bindgen).expect("the bindings");
}
