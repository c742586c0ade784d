//! Files that are no plugins for this operator, and what each refusal must say.

use std::path::PathBuf;

/// A file that must be refused.
pub struct BadPlugin {
    /// The name it is offered under.
    pub name: &'static str,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What the refusal says.
    pub says: &'static str,
}

/// A test guest, as `tests/run` builds it.
pub fn guest(name: &str) -> Vec<u8> {
    let path: PathBuf = crate::root().join("bin/guests").join(format!("{name}.wasm"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}: run the suites with tests/run", path.display()))
}

/// A good plugin, as `make build` leaves it.
pub fn good() -> Vec<u8> {
    std::fs::read(crate::root().join("bin/plugins/sandbox.wasm")).expect("make build leaves it")
}

/// All of them.
pub fn bad_plugins() -> Vec<BadPlugin> {
    let sandbox = good();
    let half = sandbox[..sandbox.len() / 2].to_vec();
    let bad = |name, bytes, says| BadPlugin { name, bytes, says };
    vec![
        bad("text", b"this is no wasm".to_vec(), "it is no WebAssembly file"),
        bad("truncated", half, "the file is broken or cut off"),
        bad("no-contract", guest("no-contract"), "a core module without the contract's type information"),
        bad(
            "wrong-version",
            guest("wrong-version"),
            "built against crawl:provider@0.2.0, and this operator serves crawl:provider@0.1.0",
        ),
        bad(
            "unknown-import",
            guest("unknown-import"),
            "it imports crawl:provider/teleport@0.1.0, which this operator does not provide",
        ),
        bad("loop-describe", guest("loop-describe"), "it was still computing after 5 s"),
        bad("memory-describe", guest("memory-describe"), "it hit its memory limit of 64 MiB"),
        bad("panic-describe", guest("panic-describe"), "it panicked"),
        bad("misnamed", sandbox, "it calls itself \"sandbox\""),
    ]
}
