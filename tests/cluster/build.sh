#!/usr/bin/env bash
# Builds the programs of the test cluster: tests/cluster/build.sh OUTDIR
#
# kube-apiserver, etcd and kubectl come from their Go modules, whose versions and digests go.mod and go.sum pin. They are
# kept in the cache, keyed by those files and Go's version; OUTDIR gets links. KUBEBUILDER_ASSETS, a folder that holds
# the three, is taken as it is. Without Go it says so, and the suites that need them skip.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
programs=(etcd kube-apiserver kubectl)
say() { echo "cluster: $*" >&2; }
[ $# = 1 ] || { say "usage: tests/cluster/build.sh OUTDIR"; exit 1; }
mkdir -p "$1"
out=$(cd "$1" && pwd)

link() {
    local program
    for program in "${programs[@]}"; do ln -sfn "$1/$program" "$out/$program"; done
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    say "taking those of KUBEBUILDER_ASSETS, $KUBEBUILDER_ASSETS"
    link "$KUBEBUILDER_ASSETS"
    exit
fi
if ! command -v go >/dev/null; then
    say "there is no Go, so there will be no API server: install Go 1.26 or later, or set KUBEBUILDER_ASSETS"
    rm -f "${programs[@]/#/$out/}"
    exit
fi

key=$({ go version; cat "$here"/*/go.mod "$here"/*/go.sum "$here/build.sh"; } | sha256sum | cut -c1-16)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/proxy-operator/cluster/$key

build() { # MODULE-FOLDER OUT PACKAGE LDFLAGS
    say "building $2, once"
    (cd "$here/$1" && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags "-s -w $4" -o "$kept/$2.new" "$3")
    mv "$kept/$2.new" "$kept/$2"
}

mkdir -p "$kept"
exec 8>"$kept/lock"
flock 8
kubernetes=$(sed -n 's|.*k8s.io/kubernetes \(v[0-9.]*\)$|\1|p' "$here/kubernetes/go.mod")
x=k8s.io/component-base/version
stamp="-X $x.gitVersion=$kubernetes -X $x.gitMajor=1 -X $x.gitMinor=$(cut -d. -f2 <<<"$kubernetes")"
[ -e "$kept/etcd" ] || build etcd etcd go.etcd.io/etcd/server/v3 ""
[ -e "$kept/kube-apiserver" ] || build kubernetes kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver "$stamp"
[ -e "$kept/kubectl" ] || build kubernetes kubectl k8s.io/kubernetes/cmd/kubectl "$stamp"
link "$kept"
say "$out: kubernetes $kubernetes, $("$kept/etcd" --version | head -1)"
