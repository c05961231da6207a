// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/sdk/model"
)

func (a *app) modelPackCommand() *cobra.Command {
	var features []string
	output := ""
	c := &cobra.Command{
		Use:   "pack FILE --features NAMES",
		Short: "Write a model as data planes with <kerb/infer.h> read it",
		Long: "Writes the value of the map models, in this machine's byte order, for a package with its own feature " +
			"extractor.\nThe features are those of the extractor, in the order of their numbers in kerb_feature_set().",
		Example: "  kerb model pack model.json --features length,ttl,port -f model.bin",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readFile(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			d, err := model.Parse(text)
			if err != nil {
				return &apierrors.Invalid{Resource: args[0], Reason: err.Error()}
			}
			p, err := d.Pack(features)
			if err != nil {
				return &apierrors.Invalid{Resource: args[0], Reason: err.Error()}
			}
			if output == "" {
				_, err = cmd.OutOrStdout().Write(p.Bytes())
				return err
			}
			return os.WriteFile(output, p.Bytes(), 0o644)
		},
	}
	c.Flags().StringSliceVar(&features, "features", nil, "names of all features of the extractor, in its order")
	c.Flags().StringVarP(&output, "out", "f", "", "file to write; standard output by default")
	_ = c.MarkFlagRequired("features")
	return c
}
