// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kerb-edge/kerb/internal/atomicfile"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// packageFiles stores the files that control planes need of their packages in a directory that their processes can
// read: the verified content is what runs, even if the package's directory changes or disappears. Files of a version
// exist as long as a control plane uses them.
type packageFiles struct {
	root string

	mu    sync.Mutex
	users map[string]int // control planes by directory
}

// newPackageFiles starts empty: files of the previous agent belong to processes that have ended with it.
func newPackageFiles(root string) (*packageFiles, error) {
	return &packageFiles{root: root, users: map[string]int{}}, os.RemoveAll(root)
}

// take returns the directory with the package's files.
func (f *packageFiles) take(p *pkgs.Package) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir := filepath.Join(f.root, strings.TrimPrefix(p.Digest, "sha256:")[:16])
	if f.users[dir] == 0 {
		if err := writeFiles(dir, p.ControlFiles); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	f.users[dir]++
	return dir, nil
}

// release removes a directory with its last user: several modules may run the same version of a package.
func (f *packageFiles) release(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users[dir]--; f.users[dir] > 0 {
		return nil
	}
	delete(f.users, dir)
	return os.RemoveAll(dir)
}

// writeFiles writes the files of a package below dir, readable and executable by the unprivileged users of control
// planes. They can traverse the parent directory, but not list it.
func writeFiles(dir string, files map[string][]byte) error {
	if err := errors.Join(makeDir(filepath.Dir(dir), 0o711), makeDir(dir, 0o755)); err != nil {
		return err
	}
	for name, data := range files {
		path := dir
		for part := range strings.SplitSeq(filepath.Dir(name), "/") {
			path = filepath.Join(path, part)
			if err := makeDir(path, 0o755); err != nil {
				return err
			}
		}
		if err := atomicfile.Swap(filepath.Join(dir, name), data, 0o755); err != nil {
			return err
		}
	}
	return nil
}
