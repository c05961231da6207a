// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/sdk/model"
)

// The value is that of Document.Pack with the extractor's features in their order, which must have the model's.
func TestModelPack(t *testing.T) {
	d, err := model.Parse([]byte(guardDocument))
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Pack([]string{"dio", "other", "dis"})
	if err != nil {
		t.Fatal(err)
	}
	file := write(t, "m.json", guardDocument)
	out, _, err := author(t, "pack", file, "--features", "dio,other,dis")
	if err != nil || out != string(p.Bytes()) {
		t.Errorf("%d bytes, want those of Pack; %v", len(out), err)
	}
	if _, _, err := author(t, "pack", file, "--features", "dio,other"); err == nil || !strings.Contains(err.Error(), `"dis"`) {
		t.Errorf("a feature that the extractor lacks: %v", err)
	}
	if _, _, err := author(t, "pack", file); err == nil || !strings.Contains(err.Error(), "features") {
		t.Errorf("no features: %v", err)
	}
}
