// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/netlab"
)

// prefix of namespaces, interfaces and pins: of this process, so that two runs do not meet. Between the letters is its id.
var prefix = prefixOf(os.Getpid())

func prefixOf(pid int) string { return "ke" + strconv.FormatInt(int64(pid), 36) + "e" }

var ofTests = regexp.MustCompile(`^ke([0-9a-z]{1,5})e[a-z]?-`) // names of namespaces

const pins = "/sys/fs/bpf"

var (
	current string // kerb as it is in the tree
	newer   string // the same with another linker revision
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // the tests skip
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(checkObjects(), build(dir), sweep()); err != nil {
		return fail(err)
	}
	setting, _ := os.ReadFile(expedited)
	code := m.Run()
	if err := errors.Join(leftovers(), unchanged(string(setting))); err != nil {
		return fail(err)
	}
	return code
}

// parallel is how many nodes there may be at a time, beside the usual one.
const parallel = 9

// parallelPrefix is that of node i of those.
func parallelPrefix(i int) string { return fmt.Sprintf("%s%c", prefix, 'a'+i) }

// sweep removes what runs have left whose process has gone.
func sweep() (err error) {
	entries, _ := os.ReadDir("/run/netns")
	for _, e := range entries {
		found := ofTests.FindStringSubmatch(e.Name())
		if found == nil {
			continue
		}
		pid, parseErr := strconv.ParseInt(found[1], 36, 32)
		if parseErr == nil && errors.Is(syscall.Kill(int(pid), 0), syscall.ESRCH) {
			lab, _, _ := strings.Cut(e.Name(), "-")
			err = errors.Join(err, netlab.Sweep(lab))
		}
	}
	return err
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// checkObjects tells what to do before a hundred tests fail for the same reason.
func checkObjects() error {
	for _, path := range []string{"../../bpf/chain.tc.o", "../../internal/dataplane/testdata/pass/pass.tc.o", "../../internal/dataplane/testdata/stamp/stamp.tc.o"} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the data planes are not built, run make bpf: %w", err)
		}
	}
	return nil
}

func build(dir string) error {
	current, newer = filepath.Join(dir, "kerb"), filepath.Join(dir, "kerb-newer")
	for path, flags := range map[string]string{
		current: "",
		newer:   "-X github.com/kerb-edge/kerb/internal/dataplane.linkerRevision=newer",
	} {
		cmd := exec.Command("go", "build", "-ldflags", flags, "-o", path, "github.com/kerb-edge/kerb/cmd/kerb")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build kerb: %w\n%s", err, out)
		}
	}
	return nil
}

// leftovers looks for anything that a test has not cleaned up.
func leftovers() error {
	var found []string
	for dir, start := range map[string]string{"/run/netns": prefix, pins: bpfPrefix()} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), start) {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	links, err := net.Interfaces()
	for _, l := range links {
		if strings.HasPrefix(l.Name, prefix) {
			found = append(found, "interface "+l.Name)
		}
	}
	if len(found) > 0 {
		err = errors.Join(err, fmt.Errorf("the tests have left behind: %s", strings.Join(found, ", ")))
	}
	return err
}

// expedited is the one setting of the kernel that the agent changes, for moments only.
const expedited = "/sys/kernel/rcu_expedited"

func unchanged(before string) error {
	for range 100 { // other agents on the machine change it, too
		if now, _ := os.ReadFile(expedited); string(now) == before {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s is no more what it was, %q", expedited, before)
}

// bpfPrefix is what the names of this process's pin directories begin with.
func bpfPrefix() string { return fmt.Sprintf("%s-%d-", prefix, os.Getpid()) }
