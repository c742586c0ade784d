#!/usr/bin/env bash
# Builds the guests: plugins/build.sh [--guests] OUTDIR
#
#   (nothing)   the plugins in ${plugins[@]} below
#   --guests    the fixtures of the host's tests, tests/guests/examples
#
# Environment:
#   PLUGIN_VERSION    builds them as another version than the workspace's
#   GUEST_TOOLCHAIN   rustup or debian: takes this one instead of the first that works
#   WRAP              command that makes a component of a core module, called as: $WRAP CORE -o OUT
set -euo pipefail

plugins=(sandbox static)
target=wasm32-unknown-unknown
packages=(rustc-web cargo-web rust-web-src rust-web-llvm lld-22)
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/proxy-operator/guests
wrap=${WRAP:-$root/bin/proxy-operator plugin wrap}

say() { echo "guests: $*" >&2; }
die() { say "$*"; exit 1; }

# Whether the toolchain on the PATH has the target's standard library, whoever installed it.
has_std() {
    local sysroot
    sysroot=$(cd "$root" && rustc --print sysroot 2>/dev/null) &&
        compgen -G "$sysroot/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null
}

# Quick when it cannot work: bounded, and a failure is remembered for an hour.
use_rustup() {
    local failed=$cache/rustup-failed
    has_std && return
    command -v rustup >/dev/null || return
    [ -z "$(find "$failed" -mmin -60 2>/dev/null)" ] || return
    say "rustup target add $target"
    (cd "$root" && timeout 60 rustup target add "$target" >&2) && has_std && return
    mkdir -p "$cache" && touch "$failed"
    return 1
}

# Debian's own Rust for the web; it brings the library's source, not the library.
use_debian() {
    local missing=() package
    command -v apt-get >/dev/null || return
    for package in "${packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || die "needs packages; run: sudo apt-get install ${missing[*]}"
    say "apt-get install ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends "${missing[@]}" >&2 || {
        apt-get update -q >&2 && apt-get install -qy --no-install-recommends "${missing[@]}" >&2
    }
}

choose_toolchain() {
    case ${GUEST_TOOLCHAIN:-} in
        "") use_rustup && way=rustup || { use_debian && way=debian; } ;;
        rustup) use_rustup && way=rustup ;;
        debian) use_debian && way=debian ;;
        *) die "GUEST_TOOLCHAIN is ${GUEST_TOOLCHAIN}; accepted: rustup, debian" ;;
    esac || die "no toolchain for $target: install rustup, or on Debian the packages ${packages[*]}"
}

# Leaves the core modules below $cores.
build() {
    local args=(build --profile guest --locked --target "$target" "$@")
    # Locations in panics name a crate's file, not this machine's folders.
    local remap="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
    export CARGO_TARGET_DIR=$cache/$way
    cores=$CARGO_TARGET_DIR/$target/guest
    cd "$root"
    if [ "$way" = rustup ]; then
        say "building with $(rustc --version) and its $target"
        RUSTFLAGS="${RUSTFLAGS:-} $remap" cargo "${args[@]}"
    else
        say "building with Debian's $(/usr/bin/rustc --version), standard library from source"
        # An unstable flag, taken from a release compiler: the library is built as part of this build.
        env -u RUSTUP_TOOLCHAIN -u CARGO RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc RUSTFLAGS="${RUSTFLAGS:-} $remap" \
            /usr/bin/cargo "${args[@]}" -Zbuild-std=std,panic_abort
    fi
}

# finish NAME CORE: a component, or the core itself for the fixture that has no contract. An unchanged file is left
# alone and a changed one replaced at once, since a running operator may watch the folder.
finish() {
    local out=$outdir/$1.wasm new=$outdir/.$1.wasm.new
    if [ "$1" = no-contract ]; then cp "$2" "$new"; else $wrap "$2" -o "$new"; fi
    if cmp -s "$new" "$out"; then rm "$new"; else mv "$new" "$out"; fi
    say "$out ($(wc -c <"$out") bytes)"
}

what=plugins
if [ "${1:-}" = --guests ]; then what=guests; shift; fi
[ $# = 1 ] || die "usage: plugins/build.sh [--guests] OUTDIR"
mkdir -p "$1"
outdir=$(cd "$1" && pwd)

choose_toolchain
if [ $what = plugins ]; then
    build "${plugins[@]/#/--package=provider-}"
    for name in "${plugins[@]}"; do finish "$name" "$cores/provider_$name.wasm"; done
else
    build --package=test-guests --examples
    for source in "$root"/tests/guests/examples/*.rs; do
        name=$(basename "$source" .rs)
        finish "$name" "$cores/examples/${name//-/_}.wasm"
    done
fi
