// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds cgroups of version 2, wherever they are mounted.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Errors that callers tell apart.
var (
	ErrNotMounted = errors.New("cgroup v2 is not mounted")
	ErrGone       = errors.New("no such cgroup")
	ErrOwnOnly    = errors.New("the agent sees only the cgroups of its own container, not sockets of other " +
		"containers and pods: mount the node's cgroups of version 2 in it, anywhere and read only (in the Helm chart " +
		"node.cgroups names their directory)")
)

// Cgroup is one that exists.
type Cgroup struct {
	Path string // below the mount, / for the root
	ID   uint64 // the inode, which bpf_get_current_cgroup_id returns, too; not used again until a reboot
}

// Mount returns where cgroup v2 is mounted. With cgroup v1 in use that is not /sys/fs/cgroup. In a container whose own
// cgroup is mounted as well, it is the mount of the node's cgroups.
func Mount() (string, error) {
	_, at, err := findMount(highest)
	return at, err
}

// CheckView returns ErrOwnOnly if this process is in a container, and Mount is the container's own cgroup: only those
// below it are seen.
func CheckView() error {
	root, at, err := findMount(highest)
	if err != nil {
		return err
	}
	self, err := selfPath()
	if err != nil {
		return err
	}
	if self == filepath.Join(root, AgentLeaf) && Delegated(at) {
		self = root // package control has moved the agent
	}
	if self != root {
		return nil
	}
	_, err = os.Stat(filepath.Join(at, "cgroup.events")) // the root of all cgroups has none
	if err == nil {
		return ErrOwnOnly
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// AgentLeaf is the name of the cgroup, below the one that is delegated to it, in which the agent is: processes may only
// be in leaves.
const AgentLeaf = "agent"

// Delegated reports whether systemd has marked a cgroup as its service's own.
func Delegated(dir string) bool {
	for _, name := range []string{"trusted.delegate", "user.delegate"} { // the second since systemd 251
		value := make([]byte, 1)
		if n, err := unix.Getxattr(dir, name, value); err == nil && n == 1 && value[0] == '1' {
			return true
		}
	}
	return false
}

// Self returns the directory of this process's cgroup. In a container with a cgroup namespace of its own there is none
// unless the container's own cgroups are mounted.
func Self() (string, error) {
	_, mount, err := findMount(own)
	if err != nil {
		return "", err
	}
	path, err := selfPath()
	if err != nil {
		return "", err
	}
	return filepath.Join(mount, path), nil
}

// selfPath returns the path of this process's cgroup below the root of its cgroup namespace.
func selfPath() (string, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path, nil
		}
	}
	return "", errors.New("this process is in no cgroup of version 2")
}

func findMount(worth func(root string) int) (root, at string, err error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	return mountIn(f, worth)
}

// highest prefers a mount that has more cgroups. Roots of mounts are relative to the root of the reader's cgroup
// namespace: /../.. is two levels above it, as the node's cgroups are if a container has a namespace of its own. A
// cgroup below, as of another container, will only do if there is no other mount.
func highest(root string) int {
	if root == "/" {
		return 1
	}
	names := strings.Split(strings.TrimPrefix(root, "/"), "/")
	if slices.ContainsFunc(names, func(name string) bool { return name != ".." }) {
		return 0
	}
	return 1 + len(names)
}

// own is the mount that paths in /proc/self/cgroup are relative to.
func own(root string) int {
	if root == "/" {
		return 1
	}
	return -1
}

// mountIn reads proc(5)'s mountinfo: what is mounted is the fourth field, where the fifth, the type the first after a
// lone hyphen. Of mounts of the same worth the first is returned, and none of less than 0.
func mountIn(mountinfo io.Reader, worth func(root string) int) (root, at string, err error) {
	best := -1
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		mount, kind, found := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mount)
		if !found || len(fields) < 5 || !strings.HasPrefix(kind, "cgroup2 ") {
			continue
		}
		if w := worth(fields[3]); w > best {
			best, root, at = w, fields[3], fields[4]
		}
	}
	if best < 0 {
		return "", "", ErrNotMounted
	}
	return unescape.Replace(root), unescape.Replace(at), nil
}

// unescape undoes what /proc does to white space and backslashes in paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// found are directories by the ids that Find has returned: to look for another id takes a walk through all cgroups.
var found sync.Map

// Find returns the cgroup with a path relative to the mount or in the file system.
func Find(path string) (Cgroup, error) {
	mount, err := Mount()
	if err != nil {
		return Cgroup{}, err
	}
	below := RelativePath(mount, path)
	dir := filepath.Join(mount, below)
	id, err := idOf(dir)
	if err != nil {
		return Cgroup{}, fmt.Errorf("cgroup %s: %w", path, err)
	}
	found.Store(id, dir)
	return Cgroup{Path: below, ID: id}, nil
}

// RelativePath returns the path of a cgroup relative to the mount; path may be absolute or relative.
func RelativePath(mount, path string) string {
	path = filepath.Clean("/" + path)
	if rest, ok := strings.CutPrefix(path+"/", strings.TrimSuffix(mount, "/")+"/"); ok {
		return filepath.Clean("/" + rest)
	}
	return path
}

// Contains reports whether path is the cgroup above or a descendant of it.
func Contains(above, path string) bool {
	return above == path || strings.HasPrefix(path, strings.TrimSuffix(above, "/")+"/")
}

func idOf(dir string) (uint64, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || err == nil && !info.IsDir() {
		return 0, ErrGone
	}
	if err != nil {
		return 0, err
	}
	return inode(info), nil
}

// Dir returns the directory of the cgroup with an id.
func Dir(id uint64) (string, error) {
	if dir, ok := known(id); ok {
		return dir, nil
	}
	found.Delete(id)
	return walkTo(id)
}

// Exists reports whether a cgroup that Find returned still exists.
func (c Cgroup) Exists() bool {
	_, ok := known(c.ID)
	return ok
}

func known(id uint64) (dir string, ok bool) {
	v, _ := found.Load(id)
	dir, ok = v.(string)
	if !ok {
		return "", false
	}
	now, err := idOf(dir)
	return dir, err == nil && now == id
}

func walkTo(id uint64) (string, error) {
	mount, err := Mount()
	if err != nil {
		return "", err
	}
	at := ""
	err = filepath.WalkDir(mount, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it has just gone, or is a file
		}
		info, err := d.Info()
		if err == nil && inode(info) == id {
			at = path
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && at == "" {
		err = fmt.Errorf("cgroup with id %d: %w", id, ErrGone)
	}
	return at, err
}

func inode(info fs.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return st.Ino
}
