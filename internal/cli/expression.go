// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// compileExpression compiles a filter expression with tcpdump, for frames with an Ethernet header, as the API expects.
// The only pure Go library, packetcap/go-pcap (2024), is no alternative: it compiles `portrange 1-2` to a program that
// matches all frames.
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
