// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// configured are programs whose configuration says that they never make calls which they contain, by the name of the
// file.
var configured = map[string]func(p *running) (never []string){"haproxy": haproxy}

// running is a process, with what it received when it started.
type running struct {
	dir   string // in /proc
	start uint64 // ns since boot
	args  []string
}

// configure takes off the calls that the process does not make.
func (f *Facts) configure(dir string, start uint64) {
	never := configured[filepath.Base(f.Path)]
	if never == nil {
		return
	}
	f.Configured = true
	line, err := readProc(dir + "/cmdline")
	if err != nil {
		return
	}
	calls := never(&running{dir, start, strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")})
	f.Uses = slices.DeleteFunc(f.Uses, func(use string) bool { return slices.Contains(calls, use) })
}

// haproxy calls splice(2) by its options splice-auto, splice-request and splice-response alone, and receives with
// MSG_WAITALL only from the process that it takes over from, over AF_UNIX (sock_get_old_sockets in src/sock.c,
// recv_fd_uxst in src/proto_sockpair.c).
func haproxy(p *running) []string {
	never := []string{Splice, WaitAll}
	if slices.Contains(p.args, "-dS") {
		return never
	}
	files, ok := p.haproxyFiles()
	if !ok || len(files) == 0 || len(files) > mostFiles || p.mentions("/environ", "splice") {
		return nil
	}
	for _, name := range files {
		text, err := p.read(name)
		if err != nil || haproxySplices(text) {
			return nil
		}
	}
	return never
}

// haproxyFiles are the configuration files that the command line names: by -f, and behind --.
func (p *running) haproxyFiles() (names []string, ok bool) {
	for i := 1; i < len(p.args); i++ {
		switch arg := p.args[i]; {
		case arg == "--":
			return append(names, p.args[i+1:]...), true
		case arg == "-f" && i+1 < len(p.args):
			i++
			names = append(names, p.args[i])
		case strings.HasPrefix(arg, "-f"), strings.HasPrefix(arg, "-C"): // -C goes into another directory
			return nil, false
		}
	}
	return names, true
}

// haproxySplices reports whether a line that is no comment has the word.
func haproxySplices(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); !bytes.HasPrefix(line, []byte("#")) && bytes.Contains(line, []byte("splice")) {
			return true
		}
	}
	return false
}

// What is read of a process: so many configuration files, of so many bytes each.
const (
	mostFiles  = 64
	mostConfig = 4 << 20
)

var (
	errRelative = errors.New("the process may have been in another directory when it read the file")
	errNewer    = errors.New("the file is newer than the process, which may have read another")
)

// read reads a file that the process has read when it began.
func (p *running) read(name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		return nil, errRelative
	}
	f, err := openRegular(p.root(), name[1:])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := p.hasRead(f); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, mostConfig))
}

// openRegular opens a regular file below a directory: to open a device can do something, and a pipe waits for a writer.
func openRegular(dir, name string) (*os.File, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH}
	at, err := unix.Openat2(root, name, &how) // Linux 5.6
	if err != nil {
		return nil, err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(fs.ErrInvalid, err)
	}
	return openUnpolled(fmt.Sprintf("/proc/self/fd/%d", at))
}

// hasRead checks that a file was there, as it is, when the process began.
func (p *running) hasRead(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	var now, up unix.Timespec
	if err := errors.Join(unix.ClockGettime(unix.CLOCK_BOOTTIME, &up),
		unix.ClockGettime(unix.CLOCK_REALTIME, &now)); err != nil {
		return err
	}
	switch began := now.Nano() - up.Nano() + int64(p.start); {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > mostConfig:
		return fs.ErrInvalid
	case st.Ctim.Nano() >= began:
		return errNewer
	}
	return nil
}

// root is where the names of files begin that the process read before it went into a chroot, which is within its mount
// namespace.
func (p *running) root() string {
	theirs, err := os.Readlink(p.dir + "/ns/mnt")
	ours, ourErr := os.Readlink("/proc/self/ns/mnt")
	if err == nil && ourErr == nil && theirs == ours {
		return "/"
	}
	return p.dir + "/root"
}

// mentions reports whether a file of /proc has a word, or cannot be read.
func (p *running) mentions(file, word string) bool {
	text, err := readProc(p.dir + file)
	return err != nil || bytes.Contains(text, []byte(word))
}
