// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

// CompileC makes a program of one C source, as fast as the compiler can make it for this machine. References in user space are
// in C, so that none is slow for its language.
func CompileC(source []byte, program string) error {
	clang, err := pkgs.FindClang(context.Background(), "")
	if err != nil {
		return err
	}
	cmd := exec.Command(clang, "-O3", "-march=native", "-pthread", "-x", "c", "-o", program, "-")
	cmd.Stdin = bytes.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w: %s", program, err, out)
	}
	return nil
}
