// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

func TestExpressionWithoutTcpdump(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if program, err := compileExpression(t.Context(), " "); program != "" || err != nil {
		t.Errorf("no expression: %q, %v", program, err)
	}
	_, err := compileExpression(t.Context(), "port 80")
	if err == nil || !strings.Contains(err.Error(), "install the package tcpdump") {
		t.Errorf("port 80: %v", err)
	}
}
