// SPDX-License-Identifier: Apache-2.0

// Command man writes the manual pages of kerb to a directory. It is separate so that kerb does not include the text
// processor.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra/doc"

	"github.com/kerb-edge/kerb/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: man DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := cli.Root(cli.Build{})
	root.DisableAutoGenTag = true // the same tree gives the same pages
	return doc.GenManTree(root, &doc.GenManHeader{Title: "KERB", Section: "1", Source: "Kerb", Manual: "Kerb manual"}, dir)
}
