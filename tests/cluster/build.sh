#!/usr/bin/env bash
# Builds the programs that tests need beside the product: tests/cluster/build.sh OUTDIR
#
# kube-apiserver, etcd, kubectl and an OCI registry come from their Go modules, whose versions and digests go.mod and go.sum
# pin. They are kept in the cache, keyed by those files and Go's version; OUTDIR gets links. The first three are taken from
# KUBEBUILDER_ASSETS where that is set. Without Go it says so, and the tests that need them skip. sshd comes from Debian.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
say() { echo "cluster: $*" >&2; }
[ $# = 1 ] || { say "usage: tests/cluster/build.sh OUTDIR"; exit 1; }
mkdir -p "$1"
out=$(cd "$1" && pwd)

if ! command -v go >/dev/null; then
    say "there is no Go, so there will be no API server and no registry but those of KUBEBUILDER_ASSETS: install Go 1.26 or later"
fi

# program NAME MODULE-FOLDER PACKAGE LDFLAGS
program() {
    local kept key assets=${KUBEBUILDER_ASSETS:-}
    if [ -n "$assets" ] && [ -e "$assets/$1" ]; then
        say "taking $1 of KUBEBUILDER_ASSETS"
        ln -sfn "$assets/$1" "$out/$1"
        return
    fi
    rm -f "$out/$1"
    command -v go >/dev/null || return 0
    key=$({ go version; cat "$here/$2/go.mod" "$here/$2/go.sum" "$here/build.sh"; } | sha256sum | cut -c1-16)
    kept=${XDG_CACHE_HOME:-$HOME/.cache}/proxy-operator/cluster/$1-$key
    mkdir -p "$kept"
    exec 8>"$kept/lock"
    flock 8
    if [ ! -e "$kept/$1" ]; then
        say "building $1, once"
        (cd "$here/$2" && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags "-s -w $4" -o "$kept/$1.new" "$3")
        mv "$kept/$1.new" "$kept/$1"
    fi
    ln -sfn "$kept/$1" "$out/$1"
}

kubernetes=$(sed -n 's|.*k8s.io/kubernetes \(v[0-9.]*\)$|\1|p' "$here/kubernetes/go.mod")
x=k8s.io/component-base/version
stamp="-X $x.gitVersion=$kubernetes -X $x.gitMajor=1 -X $x.gitMinor=$(cut -d. -f2 <<<"$kubernetes")"
program etcd etcd go.etcd.io/etcd/server/v3 ""
program kube-apiserver kubernetes k8s.io/kubernetes/cmd/kube-apiserver "$stamp"
program kubectl kubernetes k8s.io/kubernetes/cmd/kubectl "$stamp"
program registry registry github.com/distribution/distribution/v3/cmd/registry ""

# Debian starts a service that it installs; the tests start servers of their own, and nobody asked for one on port 22.
install_sshd() {
    local policy=/usr/sbin/policy-rc.d ours=
    say "apt-get install openssh-server, whose service is not started"
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && ours=1; }
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends openssh-server >&2 </dev/null ||
        { apt-get update -q >&2 && apt-get install -qy --no-install-recommends openssh-server >&2 </dev/null; } || true
    [ -z "$ours" ] || rm -f $policy
}
if ! [ -x /usr/sbin/sshd ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then install_sshd; fi
