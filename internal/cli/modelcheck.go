// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/sdk/model"
)

// checked is the result of `kerb model check`.
type checked struct {
	Model       string   `json:"model"`
	Arithmetic  string   `json:"arithmetic"`
	Rows        int      `json:"rows"`
	Differ      int      `json:"differ"` // decisions of the kernel that differ from those in floating point
	Agreement   float64  `json:"agreement"`
	Accuracy    *float64 `json:"accuracy,omitempty"`      // of the kernel
	AsTrained   *float64 `json:"accuracyFloat,omitempty"` // in floating point
	Nanoseconds float64  `json:"nanoseconds"`             // an inference in the kernel, median over rows
}

func (a *app) modelCheckCommand() *cobra.Command {
	data, label := "", ""
	c := answers(&cobra.Command{
		Use:   "check FILE --data CSV",
		Short: "Run a model in this kernel on a table, and compare it with floating point",
		Long: "Loads the model into the kernel and runs it on each row of the table, by test runs: it processes no " +
			"packets, and " +
			"needs no\n" +
			"agent. The table has a column for each feature, and one with the class, by name or number, for the " +
			"accuracy.\n" +
			"Needs root, or CAP_BPF and CAP_NET_ADMIN.",
		Example: "  kerb model check floods.json --data windows.csv",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, s, err := readModel(args[0], data, label, cmd.InOrStdin())
			if err != nil {
				return err
			}
			found, err := checkModel(d, s)
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), found, func(w io.Writer) { printChecked(w, found) })
		},
	})
	dataFlags(c, &data, &label)
	return c
}

func dataFlags(c *cobra.Command, data, label *string) {
	c.Flags().StringVar(data, "data", "", "CSV file with a heading")
	c.Flags().StringVar(label, "label", "label", "column with the class")
	_ = c.MarkFlagRequired("data")
}

const timedRows = 5 // rows, spread over the table, whose time is measured

// checkModel evaluates a model on all rows in the kernel, and compares each decision with the same arithmetic in Go,
// which must agree bit for bit, and with floating point, which may differ. Times are in ns.
func checkModel(d *model.Document, s *samples) (*checked, error) {
	p, err := d.Pack(d.Features)
	if err != nil {
		return nil, &apierrors.Invalid{Resource: d.Name, Reason: err.Error()}
	}
	k, err := models.OpenEngine()
	if err != nil {
		return nil, err
	}
	defer k.Close()
	if err := k.Load(p); err != nil {
		return nil, err
	}
	out := &checked{Model: d.Name, Arithmetic: arithmeticOf(d), Rows: len(s.rows)}
	var right, rightFloat int
	var times []float64
	for n, row := range s.rows {
		features := integers(row)
		got, err := k.Decide(features)
		if err != nil {
			return nil, err
		}
		if want := p.Infer(features); want.Class != got.Class || want.Score != got.Score {
			return nil, fmt.Errorf("row %d: the kernel decides %d (%d), the same arithmetic in Go %d (%d): please report this",
				n+1, got.Class, got.Score, want.Class, want.Score)
		}
		class, _ := d.Infer(row)
		out.Differ += one(class != int(got.Class))
		if len(s.classes) > 0 {
			right += one(s.classes[n] == int(got.Class))
			rightFloat += one(s.classes[n] == class)
		}
		if n%max(1, len(s.rows)/timedRows) == 0 {
			ns, err := k.Nanoseconds()
			if err != nil {
				return nil, err
			}
			times = append(times, ns)
		}
	}
	out.Agreement = 1 - float64(out.Differ)/float64(len(s.rows))
	slices.Sort(times)
	out.Nanoseconds = times[len(times)/2]
	if len(s.classes) > 0 {
		out.Accuracy, out.AsTrained = share(right, s), share(rightFloat, s)
	}
	return out, nil
}

func arithmeticOf(d *model.Document) string {
	switch {
	case len(d.Trees) > 0:
		return "exact"
	case d.Arithmetic == "":
		return model.Q15
	}
	return d.Arithmetic
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

func share(n int, s *samples) *float64 {
	v := float64(n) / float64(len(s.rows))
	return &v
}

func printChecked(w io.Writer, c *checked) {
	field(w, "Model", c.Model)
	field(w, "Arithmetic", c.Arithmetic)
	field(w, "Rows", c.Rows)
	field(w, "Agreement", fmt.Sprintf("%.5f, %d decisions differ from floating point", c.Agreement, c.Differ))
	if c.Accuracy != nil {
		field(w, "Accuracy", fmt.Sprintf("%.4f, in floating point %.4f", *c.Accuracy, *c.AsTrained))
	}
	field(w, "Inference", fmt.Sprintf("%.0f ns", c.Nanoseconds))
}
