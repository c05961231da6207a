// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

func exampleFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../../deploy/examples/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	return files
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The examples have only fields of a ClusterModule, and select pods. An API server checks them in TestValidation, and
// an agent in the tests of docs.
func TestExamples(t *testing.T) {
	for _, file := range exampleFiles(t) {
		var m struct { // api.Module decodes itself, and not strictly
			APIVersion, Kind string
			Metadata         api.ObjectMeta
			Spec             api.ModuleSpec
		}
		if err := decodeStrictly(readFile(t, file), &m); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if m.Kind != "ClusterModule" || m.Spec.Package.Name == "" || m.Spec.Attach.Pods.Pods == nil {
			t.Errorf("%s: %+v", file, m)
		}
	}
}

// decodeStrictly decodes YAML as JSON, without unknown fields.
func decodeStrictly(text []byte, to any) error {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return err
	}
	data, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(to)
}
