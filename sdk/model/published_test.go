// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/csv"
	"os"
	"slices"
	"strconv"
	"testing"
)

// rplFeatures are in an order of our own: a model finds its features by name.
var rplFeatures = []string{"other", "dao", "dis", "dio"}

// published are the windows of the published study (bench/classifier/data, MIT): counts in the order of rplFeatures,
// and labels.
func published(t *testing.T, window string) (rows [][]int64, labels []int) {
	file, err := os.Open("../../bench/classifier/data/helloFlood" + window + "Frame.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader := csv.NewReader(file)
	reader.Comma, reader.FieldsPerRecord = ';', -1
	all, err := reader.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range all[0] {
		column[name] = i
	}
	at := []int{column["OtherMsg"], column["DaoCount"], column["DisCount"], column["DioCount"]}
	for _, record := range all[1:] {
		row := make([]int64, len(at))
		for i, c := range at {
			if row[i], err = strconv.ParseInt(record[c], 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		label, err := strconv.Atoi(record[column["label"]])
		if err != nil {
			t.Fatal(err)
		}
		rows, labels = append(rows, row), append(labels, label)
	}
	return rows, labels
}

// The published 4-3-2-1 on every published window, in the kernel: Q15 decides as floating point does, 8 bits are as
// accurate within a point.
func TestPublishedWindows(t *testing.T) {
	k := newKernel(t)
	for _, window := range []string{"1s", "5s", "10s"} {
		rows, labels := published(t, window)
		text, err := os.ReadFile("../../modules/classifier/models/rpl-hello-" + window + ".json")
		if err != nil {
			t.Fatal(err)
		}
		d, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		inputs := make([][]float64, len(rows))
		for i, row := range rows {
			for _, name := range d.Features {
				inputs[i] = append(inputs[i], float64(row[slices.Index(rplFeatures, name)]))
			}
		}
		if err := d.Calibrate(inputs); err != nil {
			t.Fatal(err)
		}
		for _, arithmetic := range []string{Q15, Int8} {
			d.Arithmetic = arithmetic
			k.load(pack(t, d, rplFeatures))
			differ, right, rightInFloat := 0, 0, 0
			for i, row := range rows {
				want, _ := d.Infer(inputs[i])
				got := int(k.infer(row).Class)
				if got != want {
					differ++
				}
				if got == labels[i] {
					right++
				}
				if want == labels[i] {
					rightInFloat++
				}
			}
			t.Logf("%s, %s: %d rows, %d decisions differ, %d right, %d in floating point", window, arithmetic, len(rows), differ,
				right, rightInFloat)
			if arithmetic == Q15 && differ > 0 || (rightInFloat-right)*100 > len(rows) {
				t.Errorf("%s, %s: too many differ", window, arithmetic)
			}
		}
	}
}
