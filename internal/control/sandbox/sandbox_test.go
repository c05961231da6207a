// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

const testUID = 61234

// box is a sandbox in directories of its own.
type box struct {
	*testing.T
	Spec
	root    string // all can pass through it
	outside string // all can write it; not in the Spec
	program string // the probes
}

func newBox(t *testing.T) *box {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root, err := os.MkdirTemp("", "sandbox")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	b := &box{T: t, root: root, outside: filepath.Join(root, "outside"), program: filepath.Join(root, "bin", "probe")}
	b.Spec = Spec{Dir: filepath.Join(root, "dir"), Read: []string{filepath.Dir(b.program)},
		Write: []string{filepath.Join(root, "state")}, UID: testUID}
	for _, dir := range []string{root, b.outside, b.Dir, b.Read[0], b.Write[0]} {
		os.Mkdir(dir, 0o755)
		b.must(os.Chmod(dir, 0o755))
	}
	b.must(os.Chmod(b.outside, 0o777))
	b.must(os.Chown(b.Write[0], testUID, testUID))
	self, err := os.ReadFile("/proc/self/exe")
	b.must(err)
	b.must(os.WriteFile(b.program, self, 0o755))
	return b
}

func (b *box) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *box) file(path, text string) string {
	b.Helper()
	b.must(os.WriteFile(path, []byte(text), 0o666))
	b.must(os.Chmod(path, 0o666))
	return path
}

func (b *box) probe(name string, args ...string) *exec.Cmd {
	b.Helper()
	b.Spec.Command = append([]string{b.program, probeArgument, name}, args...)
	return b.command()
}

func (b *box) command() *exec.Cmd {
	b.Helper()
	cmd, err := Command("/proc/self/exe", b.Spec)
	b.must(err)
	return cmd
}

// do runs a probe to its end.
func (b *box) do(name string, args ...string) string {
	b.Helper()
	return b.output(b.probe(name, args...))
}

func (b *box) output(cmd *exec.Cmd) string {
	b.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	b.must(Start(cmd))
	if err := cmd.Wait(); err != nil {
		b.Fatalf("%v: %s", err, out.String())
	}
	return strings.TrimSpace(out.String())
}

func (b *box) expect(want, probe string, args ...string) {
	b.Helper()
	if got := b.do(probe, args...); got != want {
		b.Errorf("%s %q: %s, want %s", probe, args, got, want)
	}
}

func needLandlock(t *testing.T, version int) {
	t.Helper()
	if abi, err := ll.LandlockGetABIVersion(); err != nil || abi < version {
		t.Skipf("Landlock %d: needs %d", abi, version)
	}
}

func status(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		out[name] = strings.Join(strings.Fields(value), " ")
	}
	return out
}

func TestIdentity(t *testing.T) {
	none, bpf := "0000000000000000", fmt.Sprintf("%016x", uint64(1)<<unix.CAP_BPF)
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("KeepBPF=%v", keep), func(t *testing.T) {
			b := newBox(t)
			b.KeepBPF = keep
			capabilities := none
			if keep {
				capabilities = bpf
			}
			got := status(b.do("show", "/proc/self/status"))
			for name, want := range map[string]string{
				"Uid": "61234 61234 61234 61234", "Gid": "61234 61234 61234 61234", "Groups": "", "NoNewPrivs": "1", "Seccomp": "2",
				"CapEff": capabilities, "CapPrm": capabilities, "CapInh": capabilities, "CapBnd": capabilities,
				"CapAmb": capabilities,
			} {
				if got[name] != want {
					t.Errorf("%s is %q, want %q", name, got[name], want)
				}
			}
			b.expect("077", "umask")
		})
	}
}

func TestReads(t *testing.T) {
	needLandlock(t, 1)
	b := newBox(t)
	b.expect("ok", "read", b.file(filepath.Join(b.Dir, "control.py"), "x"))
	b.expect("ok", "read", "control.py")
	b.expect("ok", "read", b.program)
	b.expect("ok", "read", b.file(filepath.Join(b.Write[0], "x"), "x"))
	b.expect("ok", "read", "/bin")
	extra := b.file(filepath.Join(b.outside, "extra"), "x")
	b.expect("EACCES", "read", extra)
	for _, path := range []string{"/etc/passwd", "/etc/shadow", "/root", "/home", "/etc", "/", b.root, "/proc/1/status",
		"/proc", "/sys/fs/bpf"} {
		if _, err := os.Stat(path); err == nil {
			b.expect("EACCES", "read", path)
		}
	}
	b.Read = append(b.Read, extra)
	b.expect("ok", "read", extra)
}

func TestWrites(t *testing.T) {
	needLandlock(t, 1)
	b := newBox(t)
	state := b.Write[0]
	b.expect("ok", "append", filepath.Join(state, "new"))
	b.expect("ok", "append", "/dev/null")
	b.expect("EACCES", "append", filepath.Join(b.outside, "new"))
	b.expect("EACCES", "append", b.file(filepath.Join(b.outside, "old"), "x"))
	b.expect("EACCES", "append", b.file(filepath.Join(b.Dir, "old"), "x"))
	b.expect("EACCES", "append", filepath.Join(os.TempDir(), filepath.Base(b.root)+".new"))
	b.expect("EACCES", "exec", b.copyProgram(filepath.Join(state, "probe")))
}

func (b *box) copyProgram(to string) string {
	b.Helper()
	data, err := os.ReadFile(b.program)
	b.must(err)
	b.must(os.WriteFile(to, data, 0o755))
	return to
}

func TestRenamesInsideWrite(t *testing.T) {
	needLandlock(t, 2)
	b := newBox(t)
	sub := filepath.Join(b.Write[0], "sub")
	b.must(os.Mkdir(sub, 0o777))
	b.must(os.Chmod(sub, 0o777))
	b.expect("ok", "rename", b.file(filepath.Join(b.Write[0], "a"), "x"), filepath.Join(sub, "a"))
	b.expect("EACCES", "rename", filepath.Join(sub, "a"), filepath.Join(b.outside, "a"))
}

// Calls here would not end with EPERM without the filter, for a user without rights.
func TestSystemCalls(t *testing.T) {
	b := newBox(t)
	for name, args := range map[string][]int{
		"bpf load":          {unix.SYS_BPF, 5},
		"bpf create map":    {unix.SYS_BPF, 0},
		"bpf get object":    {unix.SYS_BPF, 7},
		"bpf map by id":     {unix.SYS_BPF, 14},
		"bpf high half":     {unix.SYS_BPF, 1<<32 | 5},
		"ptrace traceme":    {unix.SYS_PTRACE, 0},
		"unshare nothing":   {unix.SYS_UNSHARE, 0},
		"unshare user":      {unix.SYS_UNSHARE, unix.CLONE_NEWUSER},
		"clone user":        {unix.SYS_CLONE, unix.CLONE_NEWUSER | int(unix.SIGCHLD)},
		"setns":             {unix.SYS_SETNS, -1, 0},
		"mount":             {unix.SYS_MOUNT, 0, 0, 0, 0, 0},
		"add_key":           {unix.SYS_ADD_KEY},
		"perf_event_open":   {unix.SYS_PERF_EVENT_OPEN},
		"io_uring_setup":    {unix.SYS_IO_URING_SETUP},
		"process_vm_readv":  {unix.SYS_PROCESS_VM_READV, 0, 0, 0, 0, 0, 0},
		"netlink netfilter": {unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		"vsock":             {unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		"unix":              {unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0},
		"pair of datagrams": {unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, 0, 0},
		"memory file":       {unix.SYS_MEMFD_CREATE},
		"shared memory":     {unix.SYS_SHMGET, 0, 4096},
		"system V queue":    {unix.SYS_MSGGET, 0, 0o1600},
		"system V locks":    {unix.SYS_SEMGET, 0, 1, 0o1600},
		"attach by id":      {unix.SYS_SHMAT, 0, 0, 0},
		"POSIX queue":       {unix.SYS_MQ_OPEN, 0, 0},
		"shared anonymous":  {unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_SHARED | unix.MAP_ANONYMOUS, -1, 0},
		"shared, validated": {unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_SHARED_VALIDATE | unix.MAP_ANONYMOUS, -1, 0},
		"outlive the agent": {unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.T = t
			b.expect("EPERM", "call", numbers(args)...)
		})
	}
	b.expect("ENOSYS", "call", numbers([]int{unix.SYS_CLONE3})...)
	b.expect("ENOTSUP", "call", numbers([]int{unix.SYS_FALLOCATE, 0, unix.FALLOC_FL_KEEP_SIZE, 0, 1 << 30})...)
	b.expect("same", "buffers")
	b.expect("EFAULT", "call", numbers([]int{unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, 0})...)
	b.expect("ok", "call", numbers([]int{unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE})...)
	b.expect("ok", "call", numbers([]int{unix.SYS_PRCTL, unix.PR_GET_DUMPABLE})...)
	b.Network = true
	b.expect("ok", "call", numbers([]int{unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0})...)
}

func numbers(values []int) []string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprint(v))
	}
	return out
}

func TestMaps(t *testing.T) {
	b := newBox(t)
	b.KeepBPF = NeedsBPF()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	b.must(err)
	defer m.Close()
	b.must(m.Put(uint32(0), uint32(21)))
	ours, theirs := b.socketPair()
	b.must(unix.Sendmsg(int(ours.Fd()), []byte("map"), unix.UnixRights(m.FD()), nil, 0))

	cmd := b.probe("map")
	cmd.ExtraFiles = []*os.File{b.null(), theirs}
	if got := b.output(cmd); got != "ok" {
		t.Fatal(got)
	}
	var value uint32
	b.must(m.Lookup(uint32(0), &value))
	if value != 42 {
		t.Errorf("value is %d, want 42", value)
	}
}

func (b *box) socketPair() (ours, theirs *os.File) {
	b.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	b.must(err)
	ours, theirs = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	b.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

func (b *box) null() *os.File {
	b.Helper()
	f, err := os.Open(os.DevNull)
	b.must(err)
	b.Cleanup(func() { f.Close() })
	return f
}

func TestNetwork(t *testing.T) {
	b := newBox(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	b.must(err)
	defer l.Close()
	if got := b.do("dial", "tcp", l.Addr().String()); got != "EACCES" && got != "ENETUNREACH" {
		t.Errorf("without network: %s", got)
	}
	b.expect("", "interfaces")
	b.Network = true
	if got := b.do("interfaces"); !strings.Contains(got, "lo") {
		t.Errorf("with network: %s", got)
	}
	b.expect("ok", "dial", "tcp", l.Addr().String())
}

func TestAbstractSockets(t *testing.T) {
	needLandlock(t, 6)
	b := newBox(t)
	b.Network = true
	l, err := net.Listen("unix", "@"+b.root)
	b.must(err)
	defer l.Close()
	b.expect("EPERM", "dial", "unix", "@"+b.root)
}

func TestDescriptors(t *testing.T) {
	b := newBox(t)
	fourth, err := os.Create(filepath.Join(b.root, "fourth"))
	b.must(err)
	defer fourth.Close()
	fifth, err := os.Create(filepath.Join(b.root, "fifth"))
	b.must(err)
	defer fifth.Close()
	cmd := b.probe("files")
	cmd.ExtraFiles = []*os.File{b.null(), fourth, fifth}
	got := b.output(cmd)
	if !strings.Contains(got, "4="+fourth.Name()) || strings.Contains(got, fifth.Name()) {
		t.Errorf("descriptors:\n%s", got)
	}
	b.expect("255 EMFILE", "exhaust")
	b.Files = 64
	b.expect("63 EMFILE", "exhaust")
}

func TestMemory(t *testing.T) {
	b := newBox(t)
	b.Memory = 64 << 20
	b.expect("ENOMEM", "allocate", fmt.Sprint(512<<20))
	b.expect("ok", "allocate", fmt.Sprint(256<<20))
	b.Memory = 128 << 20
	b.expect("ok", "allocate", fmt.Sprint(512<<20))
}

// A file cannot become larger than what the program may keep, and memory cannot come from devices.
func TestFileSize(t *testing.T) {
	b := newBox(t)
	b.Disk = 1 << 20
	b.expect("ok", "grow", filepath.Join(b.Write[0], "small"), fmt.Sprint(1<<20))
	b.expect("EFBIG", "grow", filepath.Join(b.Write[0], "large"), fmt.Sprint(1<<20+1))
	b.Disk = 0
	b.expect("ok", "grow", filepath.Join(b.Write[0], "large"), fmt.Sprint(2<<20))
	needLandlock(t, 1)
	b.expect("EACCES", "read", "/dev/zero")
}

// started returns the output of a command, of which "started" has been read.
func (b *box) started(start func(*exec.Cmd) error, cmd *exec.Cmd) io.Reader {
	b.Helper()
	r, w, err := os.Pipe()
	b.must(err)
	b.Cleanup(func() { r.Close() })
	cmd.Stdout, cmd.Stderr = w, w
	b.must(start(cmd))
	b.must(w.Close())
	b.must(r.SetReadDeadline(time.Now().Add(time.Minute)))
	line := make([]byte, 8)
	if n, err := io.ReadFull(r, line); err != nil || string(line) != "started\n" {
		rest, _ := io.ReadAll(r)
		b.Fatalf("started: %q %v %s", line[:n], err, rest)
	}
	return r
}

// ended checks that no process holds the other end any more.
func (b *box) ended(r io.Reader) {
	b.Helper()
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		b.Errorf("after the end: %q %v", rest, err)
	}
}

// The program ends, and so does what it has forked.
func TestEndsWithTheAgent(t *testing.T) {
	b := newBox(t)
	b.Spec.Command = []string{b.program, probeArgument, "forever"}
	data, err := json.Marshal(b.Spec)
	b.must(err)
	agent := exec.Command("/proc/self/exe", probeArgument, "parent", string(data))
	out := b.started((*exec.Cmd).Start, agent)
	b.must(agent.Process.Kill())
	agent.Wait()
	b.ended(out)
}

// A program outlives the threads of goroutines that have ended, the one that asked for it too.
func TestOutlivesThreads(t *testing.T) {
	b := newBox(t)
	cmd := b.probe("sleep")
	started := make(chan io.Reader)
	go func() {
		runtime.LockOSThread() // so that the thread ends with the goroutine
		started <- b.started(Start, cmd)
	}()
	out := <-started
	for range 100 {
		done := make(chan bool)
		go func() { runtime.LockOSThread(); close(done) }()
		<-done
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)); err != nil ||
		strings.Contains(string(stat), ") Z ") {
		t.Errorf("the program has ended: %s %v", stat, err)
	}
	b.must(cmd.Process.Kill())
	b.ended(out)
	cmd.Wait()
}

func TestRefusesAnotherParent(t *testing.T) {
	b := newBox(t)
	b.Spec.Command = []string{"/bin/true"}
	cmd := b.command()
	cmd.Args[len(cmd.Args)-1] = encode(order{Spec: b.Spec, Parent: os.Getpid() + 1})
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "parent is") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestEndsWhatIsForked(t *testing.T) {
	b := newBox(t)
	cmd := b.probe("forever")
	out := b.started(Start, cmd)
	b.must(cmd.Process.Kill())
	b.ended(out)
	cmd.Wait()
}

func TestPython(t *testing.T) {
	python, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		t.Skip("no /usr/bin/python3")
	}
	b := newBox(t)
	b.file(filepath.Join(b.Dir, "control.py"), `
import asyncio, http.server, json, os, socket, ssl, tempfile
assert os.listdir(".") == ["control.py"], os.listdir(".")
tempfile.TemporaryFile(dir=os.environ["TMPDIR"]).write(b"x")
asyncio.run(asyncio.sleep(0))
connection, _ = socket.socket(fileno=3).accept()
connection.sendall(b"hello from " + str(os.getuid()).encode())
`)
	l, err := net.Listen("unix", filepath.Join(b.root, "socket"))
	b.must(err)
	defer l.Close()
	file, err := l.(*net.UnixListener).File()
	b.must(err)
	defer file.Close()
	b.Env = []string{"TMPDIR=" + b.Write[0]}
	b.Spec.Command = []string{python, "control.py"}
	cmd := b.command()
	cmd.ExtraFiles = []*os.File{file}
	connection, err := net.Dial("unix", l.Addr().String())
	b.must(err)
	defer connection.Close()
	if got := b.output(cmd); got != "" {
		t.Error(got)
	}
	if got, err := io.ReadAll(connection); err != nil || string(got) != "hello from 61234" {
		t.Errorf("%q %v", got, err)
	}
}

func TestCheck(t *testing.T) {
	good := Spec{Command: []string{"/bin/true"}, Dir: "/usr", UID: 1}
	if _, err := Command("/proc/self/exe", good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Spec){
		"no command":       func(s *Spec) { s.Command = nil },
		"relative command": func(s *Spec) { s.Command = []string{"true"} },
		"root":             func(s *Spec) { s.UID = 0 },
		"few files":        func(s *Spec) { s.Files = 3 },
		"no directory":     func(s *Spec) { s.Dir = "" },
		"reads all":        func(s *Spec) { s.Read = []string{"/usr/.."} },
		"writes relative":  func(s *Spec) { s.Write = []string{"state"} },
	} {
		s := good
		change(&s)
		if _, err := Command("/proc/self/exe", s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCloseEach(t *testing.T) {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD, LastFile+1) // without CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := closeEach(); err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x %v", flags, err)
	}
}
