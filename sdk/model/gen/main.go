// SPDX-License-Identifier: Apache-2.0

// Command gen writes model_tables_gen.h, the tables of the classifier's activation functions.
package main

import (
	"log"
	"os"

	"github.com/kerb-edge/kerb/sdk/model"
)

func main() {
	if err := os.WriteFile("../../bpf/include/kerb/model_tables_gen.h", model.TablesHeader(), 0o644); err != nil {
		log.Fatal(err)
	}
}
