// SPDX-License-Identifier: Apache-2.0

// Package fusetest is a file system with one file, which answers until StopAnswering: what a service can do to an agent
// that examines its files.
package fusetest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// FS is mounted until the test ends.
type FS struct {
	Path   string // of the file, which holds some zeros
	End    func() // with an error for callers that wait for an answer, as for those that close a file
	device *os.File
	silent atomic.Bool
}

// New mounts one.
func New(t testing.TB) *FS {
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if err := unix.Mount("kerb-test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0",
		device.Fd())); err != nil {
		device.Close()
		t.Skip(err)
	}
	f := &FS{Path: filepath.Join(dir, "file"), device: device}
	served := make(chan struct{})
	go func() {
		defer close(served)
		f.serve()
	}()
	f.End = sync.OnceFunc(func() {
		_ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)
		<-served
		device.Close()
	})
	t.Cleanup(f.End)
	return f
}

// Open opens the file as one must here: os.Open has the runtime ask epoll about it, which comes as a request and holds
// up this very process, the file system too, when its garbage is collected before the answer.
func (f *FS) Open(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.Open(f.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Path)
}

// StopAnswering makes the file system ignore all further requests.
func (f *FS) StopAnswering() { f.silent.Store(true) }

// Requests (linux/fuse.h).
const (
	lookup  = 1
	forget  = 2
	getattr = 3
	open    = 14
	read    = 15
	release = 18
	flush   = 25
	begin   = 26
	poll    = 40
)

type (
	request struct {
		Len, Opcode        uint32
		Unique, Node       uint64
		UID, GID, PID, Pad uint32
	}
	response struct {
		Len    uint32
		Error  int32
		Unique uint64
	}
	attributes struct {
		Ino, Size, Blocks, Atime, Mtime, Ctime                                   uint64
		AtimeNs, MtimeNs, CtimeNs, Mode, Nlink, UID, GID, Rdev, BlockSize, Flags uint32
	}
)

func (f *FS) serve() {
	buffer := make([]byte, 1<<20)
	for {
		n, err := unix.Read(int(f.device.Fd()), buffer)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		var r request
		if err != nil {
			return
		}
		if _, err := binary.Decode(buffer[:n], binary.NativeEndian, &r); err != nil || r.Opcode == forget || f.silent.Load() {
			continue
		}
		body, errno := answer(&r)
		var out bytes.Buffer
		header := response{uint32(binary.Size(response{}) + len(body)), -int32(errno), r.Unique}
		_ = binary.Write(&out, binary.NativeEndian, header)                 // of fixed size
		_, _ = unix.Write(int(f.device.Fd()), append(out.Bytes(), body...)) // who asked may have gone
	}
}

func answer(r *request) ([]byte, unix.Errno) {
	file := attributes{Ino: 2, Size: 4096, Mode: unix.S_IFREG | 0o755, Nlink: 1}
	switch r.Opcode {
	case begin:
		// version, read ahead, flags, limits, largest write
		return pack([]uint32{7, 31, 0, 0, 0, 1 << 16}, make([]uint32, 10)), 0
	case lookup:
		return pack([]uint64{2, 0, 0, 0, 0}, file), 0 // node, generation, how long that holds
	case getattr:
		if r.Node == 1 {
			file.Mode = unix.S_IFDIR | 0o755
		}
		return pack([]uint64{0, 0}, file), 0
	case open:
		return pack([]uint64{0, 0}), 0
	case read:
		return make([]byte, 4096), 0
	case flush, release:
		return nil, 0
	}
	return nil, unix.ENOSYS
}

func pack(parts ...any) []byte {
	var out []byte
	for _, p := range parts {
		b, err := binary.Append(nil, binary.NativeEndian, p)
		if err != nil {
			panic(err) // all have a fixed size
		}
		out = slices.Concat(out, b)
	}
	return out
}
