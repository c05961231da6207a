// SPDX-License-Identifier: Apache-2.0

// Command gen writes tables_gen.h, the tables of the classifier's activation functions.
package main

import (
	"log"
	"os"

	"github.com/kerb-edge/kerb/sdk/model"
)

func main() {
	if err := os.WriteFile("../../modules/classifier/tables_gen.h", model.TablesHeader(), 0o644); err != nil {
		log.Fatal(err)
	}
}
