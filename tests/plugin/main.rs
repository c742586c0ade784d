//! The plugin host with real guests: good, bad and hostile ones. A file per behaviour.

mod bombs;
mod caching;
mod connections;
mod deadlines;
mod dropping;
mod egress;
mod evolution;
mod folder;
mod hostile;
mod http;
mod limits;
mod mandate;
mod mutations;
mod oci;
mod oci_hostile;
mod redaction;
mod refusing;
mod sandbox;
mod sandbox_faults;
mod seeds;
mod small_plugins;
mod sources;
mod ssh;
mod ssh_pool;
mod ssh_trust;
mod swapping;
mod tokens;
mod trust;
mod wasi;

/// What the fuzz targets run.
#[path = "../fuzz/src/lib.rs"]
mod fuzz;
