//! What the operator makes of files that are to become plugins, whatever is in them. The suite `plugin` runs the same
//! functions, over the kept seeds and over damaged plugins.

use std::sync::Arc;

use proxy_operator::plugin::contract;
use proxy_operator::plugin::load::{LoadError, Loader};
use proxy_operator::plugin::source::upload::unpack;

/// What came of a file.
pub enum Outcome {
    /// It is a plugin.
    Loaded,
    /// It would be compiled.
    Sound,
    /// It is none, and the text helps.
    Refused(LoadError),
}

/// Loads a file. Compiling is what takes the time, so one with more than `most` bytes of code goes no further than that.
pub async fn load(loader: &Arc<Loader>, name: &str, bytes: &[u8], most: u64) -> Outcome {
    let code = contract::check(bytes).and_then(|checked| {
        contract::validate(&checked.component)?;
        Ok(contract::code_bytes(&checked.component))
    });
    let loaded = match code {
        Ok(code) if code > most => return Outcome::Sound,
        Ok(_) => loader.load(name, bytes.to_vec()).await,
        Err(error) => Err(error.into()),
    };
    loaded.map_or_else(|error| Outcome::Refused(helpful(error)), |_| Outcome::Loaded)
}

/// Puts an upload together. Its first byte says whether it is compressed and into how many parts it was cut.
pub fn join(upload: &[u8]) -> Result<Vec<u8>, LoadError> {
    let (first, rest) = upload.split_first().unwrap_or((&0, &[]));
    let parts: Vec<_> = rest.chunks(rest.len() / usize::from(first / 2 + 1) + 1).map(<[u8]>::to_vec).collect();
    unpack(first % 2 == 1, &parts).map_err(helpful)
}

/// A refusal is read by people, in a status, an event and a log: one short line with the cause, and what to do.
fn helpful(error: LoadError) -> LoadError {
    let text = error.to_string();
    let (cause, remedy) = text.rsplit_once("; ").unwrap_or_else(|| panic!("no remedy: {text}"));
    assert!(!cause.trim().is_empty() && !remedy.trim().is_empty(), "{text}");
    assert!(text.len() < 4096, "{} bytes: {text}", text.len());
    assert!(!text.chars().any(char::is_control), "control characters: {text:?}");
    error
}
