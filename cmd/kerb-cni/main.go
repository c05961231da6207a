// SPDX-License-Identifier: Apache-2.0

// kerb-cni is the chained CNI plugin of Kerb. Container runtimes execute it for every pod; operators run its commands
// install and uninstall.
package main

import (
	"os"

	"github.com/kerb-edge/kerb/integrations/kubernetes/cni"
)

func main() { os.Exit(cni.Main(os.Args[1:])) }
