//go:build tools

// Package registry names the registry that plugins are pulled from in tests, so that go.mod pins it.
package registry

import _ "github.com/distribution/distribution/v3/cmd/registry"
