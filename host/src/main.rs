//! The binary: see the library.

/// Gives memory back that a burst of work took; the system's own keeps half as much again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    proxy_operator::cli::main()
}
