#!/usr/bin/env bash
# Builds {{name}}.wasm.
#
#   PROXY_OPERATOR   the operator's binary [proxy-operator on the PATH]
set -euo pipefail
cd "$(dirname "$0")"

target=wasm32-unknown-unknown
out=${CARGO_TARGET_DIR:-target}
operator=${PROXY_OPERATOR:-proxy-operator}

# Whether the toolchain on the PATH has the target's standard library, whoever installed it.
has_std() {
    compgen -G "$(rustc --print sysroot)/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null
}

if has_std || { command -v rustup >/dev/null && timeout 60 rustup target add "$target" && has_std; }; then
    cargo build --release --target "$target"
elif dpkg-query -W rust-web-src >/dev/null 2>&1; then
    # Debian's Rust for the web brings the library's source; building it takes a flag that is not stable yet.
    env -u RUSTUP_TOOLCHAIN -u CARGO RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc \
        /usr/bin/cargo build --release --target "$target" -Zbuild-std=std,panic_abort
else
    echo "no $target: run \`rustup target add $target\`, or on Debian" \
        "\`sudo apt-get install rustc-web cargo-web rust-web-src rust-web-llvm lld-22\`" >&2
    exit 1
fi
"$operator" plugin wrap "$out/$target/release/provider_{{crate}}.wasm" -o {{name}}.wasm
echo "{{name}}.wasm: $(wc -c <{{name}}.wasm) bytes"
