// SPDX-License-Identifier: Apache-2.0

// Package examples has the example resources for programs that apply them: the demos.
package examples

import "embed"

// Files are the resources, by file name.
//
//go:embed *.yaml
var Files embed.FS
