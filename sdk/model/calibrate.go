// SPDX-License-Identifier: Apache-2.0

package model

import "math"

// Calibrate sets d.Ranges from rows of data in the order of d.Features. int8 quantises each range in 127 steps.
func (d *Document) Calibrate(rows [][]float64) error {
	if !d.layered() {
		return wrong("kind", "a model of kind %s is exact; nothing to quantise", d.Kind)
	}
	if len(rows) == 0 {
		return wrong("", "no data to quantise with")
	}
	layers := d.dense()
	r := &Ranges{Inputs: make([][2]float64, len(d.Features)), Layers: make([][2]float64, len(layers))}
	for n, row := range rows {
		if len(row) != len(d.Features) {
			return wrong("", "row %d of the data has %d values for %d features", n+1, len(row), len(d.Features))
		}
		x := make([]float64, len(row))
		for i, v := range row {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return wrong("", "row %d of the data: %s is %v", n+1, d.Features[i], v)
			}
			widen(&r.Inputs[i], n == 0, v)
			from, width := d.Scale.of(i)
			x[i] = (v - from) / width
		}
		for i := range layers {
			x = layers[i].apply(x)
			widen(&r.Layers[i], n == 0, x...)
		}
	}
	for _, list := range [][][2]float64{r.Inputs, r.Layers} {
		for i := range list {
			if list[i][1]-list[i][0] < 1e-6 { // constant
				list[i][1] = list[i][0] + 1
			}
		}
	}
	d.Ranges = r
	return nil
}

func widen(at *[2]float64, first bool, values ...float64) {
	for i, v := range values {
		if first && i == 0 {
			*at = [2]float64{v, v}
		}
		at[0], at[1] = min(at[0], v), max(at[1], v)
	}
}
