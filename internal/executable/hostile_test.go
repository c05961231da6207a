// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/fusetest"
	"github.com/kerb-edge/kerb/internal/timeoutio"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// crafted is an ELF file: a header, sections and segments with headers as they are wanted, and contents behind them.
func crafted(t *testing.T, segments []elf.Prog64, sections []elf.Section64, contents []byte) *os.File {
	t.Helper()
	const header, segment, section = 64, 56, 64
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: header,
		Phoff: header, Phentsize: segment, Phnum: uint16(len(segments)),
		Shoff: header + uint64(segment*len(segments)), Shentsize: section, Shnum: uint16(len(sections))}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	switch {
	case len(sections) > 1:
		h.Shstrndx = 1
	case len(sections) == 0:
		h.Shoff = 0
	}
	begin := header + uint64(segment*len(segments)+section*len(sections))
	for i := range segments {
		segments[i].Off += begin
	}
	for i := range sections {
		sections[i].Off += begin
	}
	var file bytes.Buffer
	for _, part := range []any{h, segments, sections, contents} {
		if err := binary.Write(&file, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Malicious files cost no more than others: not their names, which may overlap, not what is compressed in them,
// not parts that are there again and again, not sizes that are not there.
func TestHostileFiles(t *testing.T) {
	const names = 4 << 20
	symbols := bytes.Repeat([]byte{1, 0, 0, 0, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 1000)
	var packed bytes.Buffer
	binary.Write(&packed, binary.LittleEndian, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: 256 << 20})
	z := zlib.NewWriter(&packed)
	for range 256 {
		z.Write(make([]byte, 1<<20))
	}
	z.Close()
	strtab, dynsym := uint32(elf.SHT_STRTAB), uint32(elf.SHT_DYNSYM)
	for name, f := range map[string]*os.File{
		"names": crafted(t, nil, []elf.Section64{{}, {Type: strtab, Size: names},
			{Type: dynsym, Off: names, Size: uint64(len(symbols)), Link: 1, Entsize: 24}},
			slices.Concat([]byte(strings.Repeat("a", names-1)+"\x00"), symbols)),
		"compressed": crafted(t, nil,
			[]elf.Section64{{}, {Type: strtab, Flags: uint64(elf.SHF_COMPRESSED), Size: uint64(packed.Len())}}, packed.Bytes()),
		"segments": crafted(t,
			slices.Repeat([]elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_X), Filesz: 1 << 20}}, 1<<15), nil,
			make([]byte, 1<<20)),
		"tables": crafted(t, nil, append([]elf.Section64{{}, {Type: strtab}},
			slices.Repeat([]elf.Section64{{Type: uint32(elf.SHT_RELA), Size: 1 << 20}}, 1<<15)...), make([]byte, 1<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c := examine(f)
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("%d MiB were taken", used>>20)
			}
			if name == "segments" && c.err == nil {
				t.Error("32 GiB were read")
			}
		})
	}
}

// A process that has mapped very many files does not take all descriptors of the agent.
func TestManyMapped(t *testing.T) {
	dir := t.TempDir()
	for i := range maxMapped + 1 {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		memory, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_EXEC|unix.PROT_READ, unix.MAP_SHARED)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(memory)
	}
	var e Examiner
	if facts, err := e.Examine(os.Getpid(), 0); err == nil {
		t.Errorf("examined: %+v", facts)
	}
}

// What a process says were its arguments may be as large as its memory.
func TestEndlessArguments(t *testing.T) {
	sdktest.NeedRoot(t)
	const size = 512 << 20
	region, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|
		unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.MunmapPtr(region, size)
	mine := layout(t)
	endless := mine
	endless.ArgStart, endless.ArgEnd = uint64(uintptr(region)), uint64(uintptr(region)+size)
	endless.set(t)
	defer mine.set(t)
	facts := Facts{Path: "/haproxy", Uses: []string{Splice}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	facts.configure("/proc/self", 1<<62)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 8*maxProc || len(facts.Uses) != 1 {
		t.Errorf("%d MiB were taken, uses %v", used>>20, facts.Uses)
	}
}

// mmLayout is struct prctl_mm_map (linux/prctl.h): what a process may say of its memory, PR_SET_MM of prctl(2).
type mmLayout struct {
	StartCode, EndCode, StartData, EndData, StartBrk, Brk, StartStack uint64
	ArgStart, ArgEnd, EnvStart, EnvEnd, Auxv                          uint64
	AuxvSize, ExeFD                                                   uint32
}

func layout(t *testing.T) mmLayout {
	t.Helper()
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat)) // proc_pid_stat(5)
	at := func(field int) uint64 {
		n, err := strconv.ParseUint(fields[field-1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	brk, _, _ := unix.Syscall(unix.SYS_BRK, 0, 0, 0)
	return mmLayout{StartCode: at(26), EndCode: at(27), StartStack: at(28), StartData: at(45), EndData: at(46),
		StartBrk: at(47), Brk: uint64(brk),
		ArgStart: at(48), ArgEnd: at(49), EnvStart: at(50), EnvEnd: at(51), ExeFD: ^uint32(0)}
}

func (l mmLayout) set(t *testing.T) {
	t.Helper()
	err := unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&l)), unsafe.Sizeof(l), 0)
	if err == unix.EINVAL {
		t.Skip("this kernel does not let processes say where their arguments are (CONFIG_CHECKPOINT_RESTORE)")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mappedFile is one of a file system of the service's own, which this process has mapped to execute.
func mappedFile(t *testing.T) *fusetest.FS {
	t.Helper()
	fs := fusetest.New(t)
	file := fs.Open(t)
	code, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		fs.End()
		_ = unix.Munmap(code)
		file.Close()
	})
	return fs
}

// A file system of the service's own may leave epoll without an answer, which Go's runtime would wait for with the
// whole process.
func TestFileSystemIsNotPolled(t *testing.T) {
	sdktest.NeedRoot(t)
	fs := mappedFile(t)
	if _, err := new(Examiner).Examine(os.Getpid(), 0); err != nil {
		t.Error(err)
	}
	if _, err := (&running{dir: "/proc/self", start: 1 << 62}).read(fs.Path); err != nil {
		t.Error(err)
	}
	if fs.Polled() {
		t.Error("epoll has asked about a file of the service")
	}
}

// One that does not answer does not hold up the agent.
func TestFileSystemThatDoesNotAnswer(t *testing.T) {
	sdktest.NeedRoot(t)
	fs := mappedFile(t)
	fs.StopAnswering()
	examined := make(chan error, 1)
	go func() {
		_, err := new(Examiner).Examine(os.Getpid(), 0)
		examined <- err
	}()
	select {
	case err := <-examined:
		if !errors.Is(err, timeoutio.ErrTimeout) {
			t.Error(err)
		}
	case <-time.After(60 * time.Second):
		t.Error("it waits for an answer")
	}
}
