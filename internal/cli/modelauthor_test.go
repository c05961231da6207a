// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/modules/classifier/inference"
	"github.com/kerb-edge/kerb/sdk/model"
)

// A perceptron that says 1 when dis is above dio, and a table of it; the last row is labelled against it.
const (
	guardDocument = `{"format": "kerb-model/1", "name": "guard", "version": 1, "extractor": "rpl", "features": ["dis", "dio"], "kind": "mlp",
 "layers": [{"weights": [[1, -1]], "bias": [0], "activation": "relu"}, {"weights": [[4]], "bias": [-2], "activation": "sigmoid"}],
 "classes": ["normal", "flood"]}`
	guardTable = "DioCount;DisCount;label\n3;9;1\n9;3;0\n0;50;flood\n20;20;normal\n0;7;0\n"
)

func author(t *testing.T, args ...string) (string, string, error) {
	t.Helper()
	a := &app{output: "table"}
	cmd := &cobra.Command{Use: "model", SilenceUsage: true, SilenceErrors: true}
	cmd.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "")
	cmd.AddCommand(a.modelAuthorCommands()...)
	var out, errs bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestModelCheck(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	out, _, err := author(t, "check", write(t, "m.json", guardDocument), "--data", write(t, "d.csv", guardTable),
		"-o", "json")
	if errors.Is(err, inference.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var got checked
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Rows != 5 || got.Differ != 0 || got.Arithmetic != model.Q15 || *got.Accuracy != 0.8 || *got.AsTrained != 0.8 {
		t.Errorf("%+v", got)
	}
}

func TestModelQuantise(t *testing.T) {
	table := write(t, "d.csv", guardTable)
	out, told, err := author(t, "quantise", write(t, "m.json", guardDocument), "--data", table)
	if err != nil {
		t.Fatal(err)
	}
	d, err := model.Parse([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	if d.Arithmetic != model.Int8 || d.Ranges == nil || d.Ranges.Inputs[0] != [2]float64{3, 50} {
		t.Errorf("arithmetic %s, ranges %+v", d.Arithmetic, d.Ranges)
	}
	if !strings.Contains(told, "0 of 5 decisions differ") {
		t.Errorf("got %q", told)
	}
}

func TestModelDataThatIsWrong(t *testing.T) {
	doc := write(t, "m.json", guardDocument)
	for text, complaint := range map[string]string{
		"dis,label\n1,0\n":           "no column dio",
		"dis,dio,label\n1,x,0\n":     `line 2: "x" is no whole number`,
		"dis,dio,label\n1,1.5,0\n":   `line 2: "1.5" is no whole number`,
		"dis,dio,label\n1,NaN,0\n":   "no whole number",
		"dis,dio,label\n1,2,worse\n": "not one of the model's: normal, flood",
		"dis,dio,label\n":            "no rows",
		"":                           "no heading",
	} {
		_, _, err := author(t, "quantise", doc, "--data", write(t, "d.csv", text))
		if err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("%q: %v, want %q", text, err, complaint)
		}
	}
}

// kerb-ml gets the arguments unchanged, including flags, and the command fails if kerb-ml fails.
func TestModelImportRunsKerbML(t *testing.T) {
	script := write(t, "kerb-ml", "#!/bin/sh\necho \"$@\"\n[ \"$2\" != bad.onnx ]\n")
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KERB_ML", script)
	if out, _, err := author(t, "import", "m.onnx", "--features", "dis,dio", "-o", "x.json"); err != nil ||
		out != "import m.onnx --features dis,dio -o x.json\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, _, err := author(t, "import", "bad.onnx"); err == nil {
		t.Error("its failure was lost")
	}
	t.Setenv("KERB_ML", filepath.Join(t.TempDir(), "none"))
	if _, _, err := author(t, "train", "rpl"); err == nil || !strings.Contains(err.Error(), "make ml") {
		t.Errorf("without kerb-ml: %v", err)
	}
}
