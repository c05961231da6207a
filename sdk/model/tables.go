// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"fmt"
	"math"
	"sync"
)

//go:generate go run ./gen

// Tables of activation.h: values in Q30, in steps of 1/64 from 0.
const (
	tableSteps = 1024
	tableStep  = 9 // 1/64 in Q15 is 2^9
	tableOne   = 1 << 30
)

type table [tableSteps + 1]uint32

// newTable returns the table of a function.
func newTable(f func(float64) float64) *table {
	var t table
	for i := range t {
		t[i] = uint32(math.Round(f(float64(i)/64) * tableOne))
	}
	return &t
}

var tables = sync.OnceValue(func() *struct{ sigmoid, exp *table } {
	return &struct{ sigmoid, exp *table }{
		newTable(func(z float64) float64 { return 1 / (1 + math.Exp(-z)) }),
		newTable(func(z float64) float64 { return math.Exp(-z) }),
	}
})

// TablesHeader returns the text of model_tables_gen.h.
func TablesHeader() []byte {
	var out bytes.Buffer
	out.WriteString("/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */\n/* Written by go generate from " +
		"model/tables.go. */\n")
	fmt.Fprintf(&out, "#ifndef KERB_MODEL_TABLES_GEN_H\n#define KERB_MODEL_TABLES_GEN_H\n\n"+
		"#define KERB_MODEL_TABLE_STEPS %d\n", tableSteps)
	for _, t := range []struct {
		name   string
		values *table
	}{{"sigmoid", tables().sigmoid}, {"exp", tables().exp}} {
		fmt.Fprintf(&out, "\nstatic const __u32 kerb_model_%s_table[KERB_MODEL_TABLE_STEPS + 1] = {", t.name)
		for i, v := range t.values {
			if i%12 == 0 {
				out.WriteString("\n\t")
			} else {
				out.WriteString(" ")
			}
			fmt.Fprintf(&out, "%d,", v)
		}
		out.WriteString("\n};\n")
	}
	out.WriteString("\n#endif\n")
	return out.Bytes()
}
