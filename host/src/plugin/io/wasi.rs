//! WASI 0.2, so that components of ordinary toolchains load. It grants a clock, random bytes, and the one folder that the
//! Provider names, read-only; no network, environment, arguments or terminal. Output goes nowhere: `log` is there for it.

use std::convert::Infallible;
use std::sync::Arc;

use rand::{Rng, TryRng};
use wasmtime::component::{Linker, ResourceTable};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use crate::plugin::call::CallState;
use crate::plugin::grants::Grants;
use crate::plugin::intercept::{Interceptor, Noted};
use crate::plugin::limits::{HANDLES, RANDOM_BYTES};

/// The packages that are linked.
pub const PACKAGES: [&str; 6] =
    ["wasi:cli/", "wasi:clocks/", "wasi:filesystem/", "wasi:io/", "wasi:random/", "wasi:sockets/"];

/// What one call holds of WASI; made when the guest first asks, since most never do.
#[derive(Default)]
pub struct Wasi(Option<(WasiCtx, ResourceTable)>);

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let (grants, function) = (&self.grants, self.function);
        let (ctx, table) = self.wasi.0.get_or_insert_with(|| (context(grants, function), table()));
        WasiCtxView { ctx, table }
    }
}

fn context(grants: &Grants, function: &'static str) -> WasiCtx {
    let mut builder = WasiCtxBuilder::new();
    builder.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false).max_random_size(u64::from(RANDOM_BYTES));
    if let Some(interceptor) = &grants.interceptor {
        let watched = Watched { interceptor: interceptor.clone(), function };
        builder.secure_random(watched.clone()).insecure_random(watched);
    }
    if let Some(dir) = grants.files()
        && let Err(error) = builder.preopened_dir(dir, "/", FsPerms::ReadOnly)
    {
        // The guest finds no folder, as if none were granted.
        tracing::warn!(path = %dir.display(), %error, "the folder of spec.files cannot be opened");
    }
    builder.build()
}

/// Random bytes under the eyes of an interceptor.
#[derive(Clone)]
struct Watched {
    interceptor: Arc<dyn Interceptor>,
    function: &'static str,
}

impl Watched {
    fn fill(&self, bytes: &mut [u8]) {
        rand::rng().fill_bytes(bytes);
        self.interceptor.note(self.function, Noted::WasiRandom(bytes.to_vec()));
    }
}

impl TryRng for Watched {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        Ok(u32::from_ne_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        Ok(u64::from_ne_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.fill(bytes);
        Ok(())
    }
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
