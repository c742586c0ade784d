#!/usr/bin/env bash
# Builds the operator: tests/env host/build.sh OUTDIR
#
# Call it through tests/env: another clone's build writes the same file in the target folder, so the copy must be made
# before the lock is released.
set -euo pipefail

if [ $# != 1 ] || [ -z "${CARGO_TARGET_DIR:-}" ]; then echo "usage: tests/env host/build.sh OUTDIR" >&2; exit 1; fi
mkdir -p "$1"
out=$(cd "$1" && pwd)/proxy-operator
built=$CARGO_TARGET_DIR/release/proxy-operator
cd "$(dirname "$0")/.."

[ -e "$built" ] || echo "host: the first build compiles all dependencies: some 10 minutes on 2 cores" >&2
echo "host: building with $(rustc --version), in $CARGO_TARGET_DIR" >&2
cargo build --release --locked --package proxy-operator --bin proxy-operator
# Replaced at once, since it may be running; left alone when nothing changed.
cmp -s "$built" "$out" || { cp "$built" "$out.new" && mv "$out.new" "$out"; }
echo "host: $out ($(($(wc -c <"$out") / 1048576)) MiB)" >&2
