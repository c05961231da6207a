// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lockfile"
	"github.com/kerb-edge/kerb/internal/netdump"
)

// Sweep removes what a killed run with this prefix left in the caller's namespace and below /run/netns.
func Sweep(prefix string) error {
	if !prefixPattern.MatchString(prefix) {
		return fmt.Errorf("netlab prefix %q is invalid", prefix)
	}
	return errors.Join(removeLinks(prefix), sweepNamespaces(prefix))
}

// locks are the locks of prefixes whose lab's process is running.
const locks = lockfile.Dir("/run/netlab")

// SweepDead removes the labs of killed processes.
func SweepDead() error {
	return locks.Sweep(func(prefix, _ string) error { return Sweep(prefix) })
}

// linkGroup marks the links of a lab, so that one request can remove them all: removing 500 veths takes a fraction of a
// second, and half a minute one by one.
func linkGroup(prefix string) uint32 {
	h := fnv.New32a()
	h.Write([]byte("netlab/" + prefix))
	return h.Sum32() | 1 // group 0 is the default
}

func labLinks(prefix string) ([]netlink.Link, error) {
	all, err := netdump.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	pattern := regexp.MustCompile("^" + prefix + "([0-9]+|br)$")
	var found []netlink.Link
	for _, link := range all {
		a := link.Attrs()
		if a.Group == linkGroup(prefix) && pattern.MatchString(a.Name) {
			found = append(found, link)
		}
	}
	return found, nil
}

// removeLinks deletes the links of a lab in the current namespace, and thereby their peers in the hosts.
func removeLinks(prefix string) error {
	links, err := labLinks(prefix)
	if err != nil || len(links) == 0 {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(linkGroup(prefix))))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("remove links of %s: %w", prefix, err)
	}
	return nil
}

func labNamespaces(prefix string) ([]string, error) {
	entries, err := os.ReadDir(namespaceDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix+"-") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// sweepNamespaces removes the lab's namespaces. The links of its node are removed first, because a process that is
// still running in a host keeps its veth.
func sweepNamespaces(prefix string) error {
	names, err := labNamespaces(prefix)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if name == prefix+"-node" {
			errs = append(errs, sweepNode(prefix, name))
		}
	}
	for _, name := range names {
		errs = append(errs, removeNamespace(name))
	}
	return errors.Join(errs...)
}

func sweepNode(prefix, name string) error {
	node, err := openNamespace(name)
	if err != nil {
		return nil // a killed run may leave a file that is not mounted
	}
	defer node.close()
	return node.Do(func() error { return removeLinks(prefix) })
}

// removeNamespace removes the name; the kernel destroys the namespace when no process and no open file refers to it.
func removeNamespace(name string) error {
	path := filepath.Join(namespaceDir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	return nil
}
