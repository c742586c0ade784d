#!/usr/bin/env bash
# Builds the examples in JavaScript and Python: plugins/languages.sh OUTDIR
#
# They need Node and Python with their own tools, which are fetched once and kept in the cache, as are the components, by the
# content of all that goes into them. Where that cannot be had it says so, and the suite that needs them skips. Compiling
# them takes more memory than an operator has, so what `plugin compile` makes of them is kept beside them.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
operator=$root/bin/proxy-operator
cache=${XDG_CACHE_HOME:-$HOME/.cache}/proxy-operator/languages
say() { echo "languages: $*" >&2; }
[ $# = 1 ] || { say "usage: plugins/languages.sh OUTDIR"; exit 1; }
mkdir -p "$1"
out=$(cd "$1" && pwd)

# need COMMAND PACKAGE…: from Debian, as root.
need() {
    local command=$1
    shift
    if eval "$command" >/dev/null 2>&1; then return; fi
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then return 1; fi
    say "apt-get install $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends "$@" >&2 </dev/null ||
        { apt-get update -q >&2 && apt-get install -qy --no-install-recommends "$@" >&2 </dev/null; }
}

# made NAME FOLDER…: links the component NAME, built by build_NAME into $work, keyed by the folders and the contract.
made() {
    local name=$1 folder=$2 key kept work
    key=$(cd "$root" && git hash-object --no-filters --stdin-paths < <(find "plugins/$folder" wit plugins/languages.sh -type f | sort) |
        sha256sum | cut -c1-16)
    kept=$cache/$name-$key
    mkdir -p "$kept"
    exec 8>"$kept/lock"
    flock 8
    if [ ! -e "$kept/$name.wasm" ]; then
        say "building $name, once"
        work=$(mktemp -d)
        cp "$here/$folder"/* "$work/"
        (cd "$work" && "build_$folder" "$name") >&2 || { rm -rf "$work"; say "$name does not build"; exit 1; }
        mv "$work/$name.wasm" "$kept/$name.wasm"
        rm -rf "$work"
    fi
    # Named by engine and CPU: a no-op where this operator's code of it is there.
    "$operator" plugin compile "$kept/$name.wasm" -o "$kept/code" >&2
    ln -sfn "$kept/$name.wasm" "$out/$name.wasm"
    for code in "$kept/code"/*; do ln -sfn "$code" "$out/$(basename "$code")"; done
}

build_javascript() {
    npm ci --no-audit --no-fund --silent && node build.mjs "$1.js" "$root/wit" "$1.wasm"
}

build_python() {
    python3 -m venv venv && venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt &&
        venv/bin/componentize-py -d "$root/wit" -w plugin componentize "${1//-/_}" -o "$1.wasm"
}

rm -f "$out"/*
if need "node --version && npm --version" nodejs npm; then made sandbox-js javascript; else say "there is no Node, so there will be no JavaScript"; fi
if need "python3 -m ensurepip --version" python3 python3-venv; then made sandbox-py python; else say "there is no Python, so there will be no Python"; fi
