//go:build tools

// Package etcd names the test cluster's database, so that go.mod pins it.
package etcd

import _ "go.etcd.io/etcd/server/v3"
