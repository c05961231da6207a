// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
)

// packages maps Oakestra's names to Kerb's packages.
var packages = map[string]string{
	"packetCounter": "counter",
	"firewall":      "firewall",
	"proxy":         "proxy",
}

// Names of built-in packages, and references with digest of pulled packages. The agent knows which exist. The number of
// digits is not part of the expression, since it would make the compiled expression large.
var (
	builtInName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	pulledName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)+@sha256:[0-9a-f]+$`)
)

// packageOf returns the package for a name: one of Oakestra's names, a directory that the node's operator has
// configured, a built-in package or a pulled one. The cluster chooses names, and the operator of the node decides what
// may run on it: no other directory is used, and no reference whose content may change.
func packageOf(name string, directories []string) (string, error) {
	if pkg, known := packages[name]; known {
		return pkg, nil
	}
	named := func(dir string) bool { return name == dir || name == filepath.Base(dir) }
	if i := slices.IndexFunc(directories, named); i >= 0 {
		return directories[i], nil
	}
	if builtInName.MatchString(name) || pulledName.MatchString(name) {
		return name, nil
	}
	return "", &invalid{"name", fmt.Sprintf("%.200q is no module: known are packetCounter, the built-in packages, pulled "+
		"packages by digest (REGISTRY/NAME@sha256:DIGEST), and the directories in oakestra.packages of the node's "+
		"configuration", name)}
}
