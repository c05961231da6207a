// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// deniedName is the file of denied digests, next to the directory of keys.
const deniedName = "denied-digests"

var versionTag = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// checkTag rejects a tag that is a version other than the package's. Tags such as latest or 1.2 are not versions.
func checkTag(ref Reference, version string) error {
	if versionTag.MatchString(ref.Tag) && strings.TrimPrefix(ref.Tag, "v") != version {
		return fmt.Errorf("%s: %w: its manifest says %s", ref, ErrVersion, version)
	}
	return nil
}

// checkVersion rejects a version older than the one that the reference resolved to before, unless the reference has a
// digest.
func (s *Store) checkVersion(ref Reference, got *loaded) error {
	if ref.Digest != "" {
		return nil
	}
	index, err := s.index()
	if err != nil {
		return err
	}
	entry := find(index.Manifests, ref)
	if entry == nil || entry.Digest == got.root.Digest {
		return nil
	}
	before, known := s.versionOf(ref, *entry)
	if known && compareVersions(got.pkg.Version, before) < 0 {
		return fmt.Errorf("%s: %w: it leads to %s now, and led to %s before; pull it with --allow-downgrade if that is meant",
			ref, ErrDowngrade, got.pkg.Version, before)
	}
	return nil
}

// versionOf reads the version of a stored package, whether it is still trusted or not.
func (s *Store) versionOf(ref Reference, entry ocispec.Descriptor) (version string, known bool) {
	l := &loader{from: s, ref: ref, trust: Trust{AllowUnsigned: true}}
	l.out.root = ocispec.Descriptor{MediaType: entry.MediaType, Digest: entry.Digest, Size: entry.Size}
	manifest, err := l.manifest(context.Background(), l.out.root)
	if err != nil || l.content(context.Background(), manifest) != nil {
		return "", false
	}
	return l.out.pkg.Version, true
}

// compareVersions compares by Semantic Versioning: numbers by value, 1.2.0-rc.1 before 1.2.0.
func compareVersions(x, y string) int {
	x, preX, isPreX := strings.Cut(x, "-")
	y, preY, isPreY := strings.Cut(y, "-")
	if c := compareParts(x, y); c != 0 {
		return c
	}
	if isPreX != isPreY {
		if isPreX {
			return -1
		}
		return 1
	}
	return compareParts(preX, preY)
}

// compareParts compares dot-separated identifiers: numbers before words, and fewer before more.
func compareParts(x, y string) int {
	return slices.CompareFunc(strings.Split(x, "."), strings.Split(y, "."), func(a, b string) int {
		n, errA := strconv.ParseUint(a, 10, 64)
		m, errB := strconv.ParseUint(b, 10, 64)
		switch {
		case errA == nil && errB == nil:
			return cmp.Compare(n, m)
		case errA == nil:
			return -1
		case errB == nil:
			return 1
		}
		return strings.Compare(a, b)
	})
}

// denied returns the digests that this node must not load. If the list is unreadable or not trusted, it returns an
// error, and nothing may be loaded.
func denied(keys string) (map[digest.Digest]bool, error) {
	path := filepath.Join(filepath.Dir(keys), deniedName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = strictModes(path)
	}
	if err != nil {
		return nil, fmt.Errorf("list of denied packages: %w", err)
	}
	out := map[digest.Digest]bool{}
	for line := range strings.Lines(string(data)) {
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		d := digest.Digest(text)
		if d.Validate() != nil {
			return nil, fmt.Errorf("list of denied packages: %s: %q is not a digest; write sha256: and 64 hexadecimal digits "+
				"on each line", path, text)
		}
		out[d] = true
	}
	return out, nil
}

// checkDenied compares the digests of all parts of an artifact, and the package's own digest, with the list.
func checkDenied(keys string, got *loaded) error {
	list, err := denied(keys)
	if err != nil {
		return err
	}
	digests := []digest.Digest{digest.Digest(got.pkg.Digest)}
	for _, b := range got.blobs {
		digests = append(digests, b.Digest)
	}
	for _, d := range digests {
		if list[d] {
			return fmt.Errorf("%w: %s is in %s", ErrDenied, d, filepath.Join(filepath.Dir(keys), deniedName))
		}
	}
	return nil
}

// strictModes rejects a file that another user could have written. Like with sshd's StrictModes, the file and all its
// parent directories must belong to root or to this process's user, and must not be writable by others, except for
// sticky directories.
func strictModes(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return err
	}
	target, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if err := strictMode(path, info); err != nil {
		return err
	}
	for _, dir := range []string{dir, target} {
		for at := dir; ; at = filepath.Dir(at) {
			info, err := os.Lstat(at)
			if err != nil {
				return err
			}
			if err := strictMode(at, info); err != nil {
				return err
			}
			if at == "/" {
				break
			}
		}
	}
	return nil
}

// strictMode checks one file or directory for strictModes. Sticky directories such as /tmp are accepted, since other
// users cannot rename entries in them.
func strictMode(path string, info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: chown root %s", path, st.Uid, path)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&(fs.ModeSticky|fs.ModeSymlink) == 0 {
		return fmt.Errorf("%s is writable by users other than its owner: chmod go-w %s", path, path)
	}
	return nil
}
