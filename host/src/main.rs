//! The binary: see the library.

fn main() -> std::process::ExitCode {
    proxy_operator::cli::main()
}
