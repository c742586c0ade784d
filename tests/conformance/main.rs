//! The conformance kit: the plugins that keep the rules pass, those that break one fail the case named for it; and the
//! commands for authors from outside.

mod authors;
mod breaking;
mod passing;
mod scripted_ssh;
mod subject;
