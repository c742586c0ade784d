//! The examples in JavaScript and Python, as `plugins/languages.sh` builds them.

use std::path::PathBuf;

/// Their folder; none, with the reason printed, where one of `names` could not be built for want of its language.
pub fn built(names: &[&str]) -> Option<PathBuf> {
    let folder = crate::root().join("bin/languages");
    for name in names {
        if !folder.join(format!("{name}.wasm")).exists() {
            println!("SKIPPED: there is no {name}.wasm: install Node with npm, and Python with venv");
            return None;
        }
    }
    Some(folder)
}
