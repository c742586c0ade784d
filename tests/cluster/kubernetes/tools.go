//go:build tools

// Package cluster names the programs of the test cluster, so that go.mod pins them.
package cluster

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
