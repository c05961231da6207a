// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/sdk/model"
)

func (a *app) modelQuantiseCommand() *cobra.Command {
	data, label, output := "", "", ""
	c := &cobra.Command{
		Use:   "quantise FILE --data CSV",
		Short: "Make a model of layers run with 8-bit weights",
		Long: "Determines the ranges of inputs and layers from the rows of the table, and writes the document with " +
			"these ranges " +
			"and the\n" +
			"arithmetic int8: it takes about a third of the time of q15, with some loss of accuracy, which is reported. Trees " +
			"are exact.",
		Example: "  kerb model quantise guard.json --data windows.csv -f guard-int8.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, s, err := readModel(args[0], data, label, cmd.InOrStdin())
			if err != nil {
				return err
			}
			text, differ, err := quantise(d, s)
			if err != nil {
				return &apierrors.Invalid{Resource: args[0], Reason: err.Error()}
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d decisions differ from floating point\n", differ, len(s.rows))
			if output == "" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return os.WriteFile(output, text, 0o644)
		},
	}
	dataFlags(c, &data, &label)
	c.Flags().StringVarP(&output, "out", "f", "", "file to write; standard output by default")
	return c
}

// quantise returns the quantised document as text, and how many decisions on the samples differ from before.
func quantise(d *model.Document, s *samples) ([]byte, int, error) {
	if err := d.Calibrate(s.rows); err != nil {
		return nil, 0, err
	}
	d.Arithmetic = model.Int8
	p, err := d.Pack(d.Features)
	if err != nil {
		return nil, 0, err
	}
	differ := 0
	for _, row := range s.rows {
		class, _ := d.Infer(row)
		differ += one(class != int(p.Infer(integers(row)).Class))
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err = encoder.Encode(d)
	return text.Bytes(), differ, err
}
