//! WASI 0.2, so that components of ordinary toolchains load. It grants a clock, random bytes, and the one folder that the
//! Provider names, read-only; no network, environment, arguments or terminal. Output goes nowhere: `log` is there for it.

use std::path::Path;

use wasmtime::component::{Linker, ResourceTable};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use crate::plugin::call::CallState;
use crate::plugin::limits::{HANDLES, RANDOM_BYTES};

/// The packages that are linked.
pub const PACKAGES: [&str; 6] =
    ["wasi:cli/", "wasi:clocks/", "wasi:filesystem/", "wasi:io/", "wasi:random/", "wasi:sockets/"];

/// What one call holds of WASI; made when the guest first asks, since most never do.
#[derive(Default)]
pub struct Wasi(Option<(WasiCtx, ResourceTable)>);

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let files = self.grants.files();
        let (ctx, table) = self.wasi.0.get_or_insert_with(|| (context(files), table()));
        WasiCtxView { ctx, table }
    }
}

fn context(files: Option<&Path>) -> WasiCtx {
    let mut builder = WasiCtxBuilder::new();
    builder.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false).max_random_size(u64::from(RANDOM_BYTES));
    if let Some(dir) = files
        && let Err(error) = builder.preopened_dir(dir, "/", FsPerms::ReadOnly)
    {
        // The guest finds no folder, as if none were granted.
        tracing::warn!(path = %dir.display(), %error, "the folder of spec.files cannot be opened");
    }
    builder.build()
}

fn table() -> ResourceTable {
    let mut table = ResourceTable::new();
    table.set_max_capacity(HANDLES);
    table
}

/// Links all of it.
pub fn link(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)
}
