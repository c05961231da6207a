// SPDX-License-Identifier: Apache-2.0

package atomicfile_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

func TestWrite(t *testing.T) { testWrite(t, atomicfile.Write) }
func TestSwap(t *testing.T)  { testWrite(t, atomicfile.Swap) }

func testWrite(t *testing.T, write func(string, []byte, fs.FileMode) error) {
	path := filepath.Join(t.TempDir(), "file")
	defer unix.Umask(unix.Umask(0o077))
	// Neither the umask nor the file that is replaced changes the permissions.
	for _, step := range []struct {
		text string
		perm fs.FileMode
	}{{"first", 0o644}, {"second", 0o600}} {
		if err := write(path, []byte(step.text), step.perm); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || string(text) != step.text {
			t.Errorf("%q, %v", text, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != step.perm {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}

// What cannot be replaced stays, and no temporary file does.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "busy"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, write := range []func(string, []byte, fs.FileMode) error{atomicfile.Write, atomicfile.Swap} {
		if err := write(filepath.Join(dir, "busy"), nil, 0o600); err == nil {
			t.Error("replaced a directory")
		}
		if err := write(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("into a directory that does not exist: %v", err)
		}
	}
	wrong := errors.New("half of it is written")
	err := atomicfile.WriteFrom(filepath.Join(dir, "file"), 0o600, func(w io.Writer) error {
		_, err := w.Write([]byte("half"))
		return errors.Join(err, wrong)
	})
	if !errors.Is(err, wrong) {
		t.Errorf("half a file: %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}
