// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWriteOpenMetrics has promtool make blocks of gauges whose labels have every character that means something.
func TestWriteOpenMetrics(t *testing.T) {
	hostile := "a\"} 1 1\n# EOF\\\x1b[31m<b>ü"
	nan := float32(math.NaN())
	times := []float64{1.7e9, 1700000010.5, 1700000020}
	all := []Timed{
		{"kerb_b", []string{"service", hostile}, times, []float32{1, nan, 2.5}},
		{"kerb_a", nil, times, []float32{nan, 3e30, 1e-9}},
		{"kerb_b", []string{"service", "web"}, times, []float32{nan, nan, 0}},
	}
	var out bytes.Buffer
	if err := WriteOpenMetrics(&out, all); err != nil {
		t.Fatal(err)
	}
	want := "# TYPE kerb_a gauge\nkerb_a{} 3e+30 1700000010.500\nkerb_a{} 1e-09 1700000020.000\n# TYPE kerb_b gauge\n" +
		`kerb_b{service="a\"} 1 1\n# EOF\\` + "\x1b" + `[31m<b>ü"} 1 1700000000.000` + "\n" +
		`kerb_b{service="a\"} 1 1\n# EOF\\` + "\x1b" + `[31m<b>ü"} 2.5 1700000020.000` + "\n" +
		`kerb_b{service="web"} 0 1700000020.000` + "\n# EOF\n"
	if out.String() != want {
		t.Errorf("got %s", out.String())
	}
	for _, wrong := range []Timed{{Name: "a b"}, {Name: "a", Labels: []string{"x", "\xff"}}} {
		if err := WriteOpenMetrics(&bytes.Buffer{}, []Timed{wrong}); err == nil {
			t.Errorf("%v is written", wrong)
		}
	}
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("promtool is missing; make test-setup installs it")
	}
	dir := t.TempDir()
	file, blocks := filepath.Join(dir, "om"), filepath.Join(dir, "data")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(blocks, "wal"), 0o700); err != nil { // promtool tsdb dump wants it
		t.Fatal(err)
	}
	said, err := exec.Command("promtool", "tsdb", "create-blocks-from", "openmetrics", file, blocks).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	dump, err := exec.Command("promtool", "tsdb", "dump", blocks).CombinedOutput()
	if err != nil || strings.Count(string(dump), "\n") != 5 || !strings.Contains(string(dump), "web") {
		t.Errorf("%v: %s", err, dump)
	}
}
