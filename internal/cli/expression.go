// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// compileExpression has tcpdump compile an expression for frames with an Ethernet header, as the API takes it. The one
// library in pure Go, packetcap/go-pcap of 2024, is no alternative: of `portrange 1-2` it makes a program that all
// frames match.
func compileExpression(ctx context.Context, expression string) (program string, err error) {
	if strings.TrimSpace(expression) == "" {
		return "", nil
	}
	tcpdump, err := exec.LookPath("tcpdump")
	if err != nil {
		return "", errors.New("tcpdump, which compiles expressions, is not installed: install the package tcpdump, or use " +
			"--host, --protocol and --port")
	}
	out, err := exec.CommandContext(ctx, tcpdump, "-y", "EN10MB", "-ddd", "--", expression).Output()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		return "", &usageError{fmt.Errorf("expression %q: %s", expression, strings.TrimSpace(string(failed.Stderr)))}
	case err != nil:
		return "", fmt.Errorf("tcpdump: %w", err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", ","), nil
}
