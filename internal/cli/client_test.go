// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A user without access to the socket gets an error that names the group with access.
func TestWhoMayConnect(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: changes a group")
	}
	group, err := user.LookupGroup("daemon")
	if err != nil {
		t.Skip(err)
	}
	gid, _ := strconv.Atoi(group.Gid)
	socket := filepath.Join(t.TempDir(), "kerb.sock")
	if err := os.WriteFile(socket, nil, 0o660); err != nil {
		t.Fatal(err)
	}
	refused := &unreachableError{socket, fs.ErrPermission}
	if text := refused.Error(); !strings.HasSuffix(text, "run this as root") {
		t.Errorf("of root's group: %s", text)
	}
	if err := os.Chown(socket, 0, gid); err != nil {
		t.Fatal(err)
	}
	if text := refused.Error(); !strings.HasSuffix(text, "run this as root, or join the group daemon") {
		t.Errorf("of another: %s", text)
	}
}
