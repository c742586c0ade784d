//! The command line against a standalone operator, with the real binary.

mod commands;
mod import;
