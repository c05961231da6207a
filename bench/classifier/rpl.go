// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/modules/classifier/models"
	"github.com/kerb-edge/kerb/sdk/model"
)

// rpl repeats the published experiment with windows of a length: the shipped perceptron on every published window, and
// the time to evaluate a window.
func (e *experiment) rpl(ctx context.Context, window string) error {
	text, err := models.Files.ReadFile("rpl-hello-" + window + ".json")
	if err != nil {
		return err
	}
	d, err := model.Parse(text)
	if err != nil {
		return err
	}
	rows, labels, err := published(window, d.Features)
	if err != nil {
		return err
	}
	if err := e.measureModel(ctx, window, "", d, rows, labels); err != nil {
		return err
	}
	small := *d
	if err := small.Calibrate(rows); err != nil {
		return err
	}
	small.Arithmetic = model.Int8
	if err := e.measureModel(ctx, window, "-int8", &small, rows, labels); err != nil {
		return err
	}
	e.rule(window, d, rows, labels)
	return e.live(ctx, "rpl/"+window, window, "window", d)
}

// measureModel measures a model in one arithmetic: its classifications of all rows, and the time for a window.
func (e *experiment) measureModel(ctx context.Context, window, suffix string, d *model.Document, rows [][]float64,
	labels []int) error {
	rightly := bench.Trial{Config: "kernel", Measure: func(context.Context) ([]bench.Sample, error) {
		return e.classifyRows(d, suffix, rows, labels)
	}}
	if err := e.run.Interleave(ctx, "rpl/"+window, rightly); err != nil {
		return err
	}
	if err := e.put(d); err != nil {
		return err
	}
	metric, arguments := "inference"+suffix, []string{"window", cmp.Or(d.Arithmetic, model.Q15), "scalar"}
	trials := append(e.trials(metric, arguments, e.kernel.Window),
		inKernel("kernel-lookup", metric, e.kernel.WindowLookUp))
	return e.run.Interleave(ctx, "rpl/"+window, trials...)
}

// classifyRows runs the model on all rows, in the kernel.
func (e *experiment) classifyRows(d *model.Document, suffix string, rows [][]float64, labels []int) ([]bench.Sample,
	error) {
	if err := e.put(d); err != nil {
		return nil, err
	}
	right, same := 0, 0
	for n, row := range rows {
		features := make([]int64, len(row))
		for i, v := range row {
			features[i] = int64(v)
		}
		got, err := e.kernel.Decide(features)
		if err != nil {
			return nil, err
		}
		class, _ := d.Infer(row)
		if int(got.Class) == labels[n] {
			right++
		}
		if int(got.Class) == class {
			same++
		}
	}
	share := func(metric string, n int) bench.Sample {
		return bench.Sample{Metric: metric + suffix, Stat: "p50", Unit: "fraction", Value: float64(n) / float64(len(rows))}
	}
	return []bench.Sample{share("accuracy", right), share("agreement", same)}, nil
}

// rule records the accuracy of the rule `dis > 0`.
func (e *experiment) rule(window string, d *model.Document, rows [][]float64, labels []int) {
	dis, right := slices.Index(d.Features, "dis"), 0
	for n, row := range rows {
		if (row[dis] > 0) == (labels[n] == 1) {
			right++
		}
	}
	for range e.run.Rounds {
		e.run.Record("rule: dis > 0", "rpl/"+window, bench.P50("accuracy", "fraction", float64(right)/float64(len(rows))))
	}
}

// columns has the columns of the published tables by feature.
var columns = map[string]string{"dis": "DisCount", "dio": "DioCount", "dao": "DaoCount", "other": "OtherMsg"}

// published returns the windows of a length, in the order of the features, and their labels.
func published(window string, features []string) (rows [][]float64, labels []int, err error) {
	text, err := files.ReadFile("data/helloFlood" + window + "Frame.csv")
	if err != nil {
		return nil, nil, err
	}
	r := csv.NewReader(bytes.NewReader(text))
	r.Comma = ';'
	table, err := r.ReadAll()
	if err != nil {
		return nil, nil, err
	}
	for _, record := range table[1:] {
		row := make([]float64, len(features))
		for i, f := range features {
			if row[i], err = strconv.ParseFloat(record[slices.Index(table[0], columns[f])], 64); err != nil {
				return nil, nil, fmt.Errorf("published windows: %w", err)
			}
		}
		label, err := strconv.Atoi(record[slices.Index(table[0], "label")])
		if err != nil {
			return nil, nil, fmt.Errorf("published windows: %w", err)
		}
		rows, labels = append(rows, row), append(labels, label)
	}
	return rows, labels, nil
}
