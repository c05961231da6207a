// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// What a control plane says about itself does not steer the terminal of who reads it.
func TestTerminalIsNotSteered(t *testing.T) {
	m := v1alpha1.Module{Status: &v1alpha1.ModuleStatus{Conditions: []v1alpha1.Condition{
		{Type: "Ready", Status: "False", Reason: "Ended", Message: "it last said: \x1b]0;root\a\x1b[2Jfine\r \u009b2J \u202eelif \x9b bell"}}}}
	var out bytes.Buffer
	if err := (&app{output: "table"}).print(&out, m, func(w io.Writer) { describeModule(w, m) }); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\a\r\u009b\u202e") || bytes.Contains(out.Bytes(), []byte(" \x9b ")) {
		t.Errorf("printed %q", out.String())
	}
	if !strings.Contains(out.String(), "␛[2Jfine") {
		t.Errorf("what was said is not to be seen: %q", out.String())
	}
}
