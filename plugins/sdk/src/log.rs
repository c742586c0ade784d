//! Lines in the operator's log. The host limits their rate and size and scrubs logins.

use crate::bindings::crawl::provider::log as host;
pub use host::Level;

/// Writes one line with fields.
pub fn write(level: Level, message: &str, fields: &[(&str, &str)]) {
    let fields: Vec<_> = fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    host::write(level, message, &fields);
}

/// For authors.
pub fn debug(message: &str, fields: &[(&str, &str)]) {
    write(Level::Debug, message, fields);
}

/// For operators.
pub fn info(message: &str, fields: &[(&str, &str)]) {
    write(Level::Info, message, fields);
}

/// Something is off and goes on.
pub fn warn(message: &str, fields: &[(&str, &str)]) {
    write(Level::Warn, message, fields);
}

/// Something failed.
pub fn error(message: &str, fields: &[(&str, &str)]) {
    write(Level::Error, message, fields);
}
