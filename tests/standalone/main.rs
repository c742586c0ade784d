//! The command line against a standalone operator, with the real binary.

mod applying;
mod commands;
mod crash;
mod disk;
mod import;
mod kit;
mod looking;
mod service;
mod settings;
mod thousands;
mod watching;
