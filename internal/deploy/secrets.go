// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const maxSecret = 64 << 10

// readSecret reads a file that only its owner, root or the agent's user, may read or write.
func readSecret(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is not an absolute path", path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return "", fmt.Errorf("%s belongs to user %d, who could change it; chown root %s", path, owner, path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", fmt.Errorf("%s can be read by others (mode %04o); chmod 600 %s", path, mode, path)
	}
	if info.Size() > maxSecret {
		return "", fmt.Errorf("%s is too large for a secret", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecret))
	return strings.TrimSpace(string(text)), err
}
