// SPDX-License-Identifier: Apache-2.0

package control

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

// A process is confined to the use of packet sockets, and may have many descriptors, if its package has capability
// inject.
func TestSpecOfInject(t *testing.T) {
	for _, capabilities := range [][]string{nil, {pkgs.CapabilityClients},
		{pkgs.CapabilityClients, pkgs.CapabilityInject}} {
		p := &program{pkg: &pkgs.Package{Manifest: pkgs.Manifest{Control: &pkgs.Control{}, Capabilities: capabilities}}}
		inject := len(capabilities) == 2
		if got := p.spec("m", firstUser); got.Inject != inject || got.Files != descriptors(inject) ||
			(got.Files > 0) != inject {
			t.Errorf("capabilities %v: inject %v, %d descriptors", capabilities, got.Inject, got.Files)
		}
	}
}

// A state directory changes its owner with what is in it, or not at all: one that has changed is not looked into again.
func TestMakeOwnInterrupted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: changes owners")
	}
	const uid = firstUser
	dir := filepath.Join(t.TempDir(), "state")
	first, stuck := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{first, stuck} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := immutable(stuck, true); err != nil {
		t.Skip("this file system has no immutable files, by which an owner cannot be changed: ", err)
	}
	err := makeOwn(dir, uid)
	if e := immutable(stuck, false); e != nil {
		t.Fatal(e)
	}
	if err == nil || owner(dir) == uid {
		t.Fatalf("it was interrupted (%v), and the directory has the new owner %d", err, owner(dir))
	}
	if err := makeOwn(dir, uid); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, first, stuck} {
		if owner(path) != uid {
			t.Errorf("%s belongs to %d", path, owner(path))
		}
	}
}

const immutableFlag = 0x10 // FS_IMMUTABLE_FL of linux/fs.h

func immutable(path string, on bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	flags &^= immutableFlag
	if on {
		flags |= immutableFlag
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}
