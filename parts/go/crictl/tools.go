//go:build tools

// Package tools names the commands built from this module, so that `go mod tidy` keeps what they need.
package tools

import _ "sigs.k8s.io/cri-tools/cmd/crictl"
