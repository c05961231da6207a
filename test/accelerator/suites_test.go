// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
)

// suite is a test suite of a program or language, which talks over TCP within one network namespace.
type suite struct {
	name   string
	fewest int // tests that have to pass, or it did not run
	// prepare also returns the program that is to be allowed: the others are known.
	prepare func(t *testing.T, dir string) (program string, run runner, err error)
}

// runner runs the tests of some parts (files) of a suite, or of all if none is named.
type runner func(t *testing.T, n *node, parts ...string) results

// results are by the names of tests.
type results map[string]result

type result struct {
	passed, skipped bool
	part            string // in which it is
}

func (r results) passed() (n int) {
	for _, one := range r {
		if one.passed {
			n++
		}
	}
	return n
}

// failed are the tests that did not pass, and were not left out by the suite itself.
func (r results) failed() []string {
	var names []string
	for name, one := range r {
		if !one.passed && !one.skipped {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// worse are the tests that passed in plain and not in r, where they may be skipped or missing.
func (r results) worse(plain results) []string {
	var names []string
	for name, one := range plain {
		if one.passed && !r[name].passed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

var suites = []suite{
	{"python", 1000, python},
	{"redis", 500, redis},
}

// The tests of others pass between sockets whose messages are redirected if they pass on plain TCP. What passes only
// now and then, as tests with time limits do on a busy machine, has three attempts.
func TestSuites(t *testing.T) {
	wanted := os.Getenv("KERB_SUITES")
	if wanted == "" {
		t.Skip("takes half an hour: make test-suites")
	}
	for _, s := range suites {
		if !slices.Contains(strings.Split(wanted, ","), s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			n := newNode(t)
			program, run, err := s.prepare(t, n.Dir)
			if err != nil {
				t.Fatalf("run scripts/setup suites: %v", err)
			}
			parts := strings.Fields(os.Getenv("KERB_SUITE_PARTS")) // all, if it is empty
			plain := run(t, n, parts...)
			t.Logf("plain TCP: %d passed, %d failed: %q", plain.passed(), len(plain.failed()), plain.failed())
			n.Start()
			m := kerbnode.Module("fast", "accelerator", "",
				map[string]any{"programs": map[string]any{"allow": []string{program}}})
			m.Spec.Attach.Cgroups = []string{n.cgroup.Name()}
			n.Apply(m)
			n.Eventually("the module answers", func() bool { return n.Get("/v1/modules/fast/pairs", nil) == nil })
			fast := run(t, n, parts...)
			messages := n.account().Messages
			t.Logf("accelerated: %d passed, %d failed: %q; %d messages were redirected", fast.passed(), len(fast.failed()),
				fast.failed(), messages)
			if plain.passed() < s.fewest && len(parts) == 0 || messages == 0 {
				t.Errorf("%d tests passed on plain TCP, %d messages were redirected", plain.passed(), messages)
			}
			again(t, n, run, plain, fast)
		})
	}
}

// again runs the parts in which there are tests that passed on plain TCP only.
func again(t *testing.T, n *node, run runner, plain, fast results) {
	worse := fast.worse(plain)
	for attempt := 2; len(worse) > 0 && attempt <= 3; attempt++ {
		var parts []string
		for _, name := range worse {
			if part := plain[name].part; !slices.Contains(parts, part) {
				parts = append(parts, part)
			}
		}
		t.Logf("%q did not pass; attempt %d of %v", worse, attempt, parts)
		fast := run(t, n, parts...)
		worse = slices.DeleteFunc(worse, func(name string) bool { return fast[name].passed })
	}
	if len(worse) > 0 {
		t.Errorf("passed on plain TCP, never on accelerated connections: %q", worse)
	}
}

// networkTests are CPython's of sockets, of what waits for them, and of protocols over TCP.
var networkTests = strings.Fields("test_asynchat test_asyncio test_asyncore test_docxmlrpc test_epoll test_ftplib " +
	"test_httplib test_httpservers test_imaplib test_nntplib test_poll test_poplib test_select test_selectors " +
	"test_smtpd test_smtplib test_socket test_socketserver test_ssl test_telnetlib test_urllib2_localnet test_wsgiref " +
	"test_xmlrpc")

// python runs those that the installed version has, in the interpreter itself: on PATH there may be a script for it.
func python(_ *testing.T, dir string) (program string, run runner, err error) {
	out, err := exec.Command("python3", "-c",
		"import os, sys, test; print(os.path.realpath(sys.executable), os.path.dirname(test.__file__))").Output()
	paths := strings.Fields(string(out))
	if err == nil && len(paths) != 2 {
		err = fmt.Errorf("its paths are %q", out)
	}
	if err != nil {
		return "", nil, fmt.Errorf("python3: %w", err)
	}
	var all []string
	for _, name := range networkTests {
		if found, _ := filepath.Glob(filepath.Join(paths[1], name+"*")); len(found) > 0 {
			all = append(all, name)
		}
	}
	if len(all) < len(networkTests)/2 {
		return "", nil, fmt.Errorf("Python's tests are not installed: %s has only %v", paths[1], all)
	}
	return paths[0], func(t *testing.T, n *node, parts ...string) results {
		if len(parts) == 0 {
			parts = all
		}
		report := filepath.Join(dir, "report.xml")
		// Connections to the hypervisor are none of TCP, and not all machines have an end for them.
		args := append([]string{"-m", "test", "--timeout", "600", "--ignore", "*VSOCK*", "--junit-xml", report}, parts...)
		cmd := n.command(t.Context(), n.a, paths[0], args...)
		cmd.Dir = dir
		said, _ := cmd.CombinedOutput() // it fails if a test does
		text, err := os.ReadFile(report)
		if err != nil {
			t.Fatalf("python3 -m test: %v: %s", err, said)
		}
		r, err := pythonResults(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}, nil
}

func pythonResults(text []byte) (results, error) {
	var report struct {
		Suites []struct {
			Cases []struct {
				Name    string    `xml:"name,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("report of python3 -m test: %w", err)
	}
	all := results{}
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			words := strings.Split(c.Name, ".") // test.test_socket.Class.test
			failed := c.Failure != nil || c.Error != nil
			all[c.Name] = result{passed: !failed && c.Skipped == nil, skipped: !failed && c.Skipped != nil,
				part: words[min(1, len(words)-1)]}
		}
	}
	return all, nil
}

// redis runs the tests of Redis' source, with the installed programs in place of those that it would build.
func redis(_ *testing.T, dir string) (program string, run runner, err error) {
	const source = "../../out/redis-suite/source"
	for _, part := range []string{"tests", "utils"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(source, part))); err != nil {
			return "", nil, err
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		return "", nil, err
	}
	for _, name := range strings.Fields("server cli benchmark check-aof check-rdb") {
		path, err := exec.LookPath("redis-" + name)
		if err != nil {
			return "", nil, err
		}
		if err := os.Symlink(path, filepath.Join(dir, "src", "redis-"+name)); err != nil {
			return "", nil, err
		}
	}
	list := exec.Command("tclsh", "tests/test_helper.tcl", "--list-tests")
	list.Dir = dir
	out, err := list.Output()
	if err != nil {
		return "", nil, fmt.Errorf("tclsh tests/test_helper.tcl --list-tests: %w", err)
	}
	all := strings.Fields(string(out))
	tclsh, err := exec.LookPath("tclsh")
	if err == nil {
		tclsh, err = filepath.EvalSymlinks(tclsh)
	}
	return tclsh, func(t *testing.T, n *node, parts ...string) results {
		if len(parts) == 0 {
			parts = all
		}
		r := results{}
		for _, part := range parts {
			// One file each time: a test that ends the run ends that of its file.
			cmd := n.command(t.Context(), n.a, tclsh, "tests/test_helper.tcl", "--clients", "1", "--tags", "-slow",
				"--timeout", "300", "--single", part)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "TERM=dumb")
			said, err := cmd.CombinedOutput()
			maps.Copy(r, redisResults(part, string(said), err))
		}
		return r
	}, err
}

var redisTest = regexp.MustCompile(`(?m)^\[(ok|err|skip|ignore)\]: (.*?)(?: \(\d+ ms\))?$`)

// redisResults are of what runtest prints of a file.
func redisResults(part, said string, ended error) results {
	all := results{}
	for _, m := range redisTest.FindAllStringSubmatch(said, -1) {
		name, _, _ := strings.Cut(m[2], " in tests/") // as failed ones have it
		one := result{passed: m[1] == "ok", skipped: m[1] == "skip" || m[1] == "ignore", part: part}
		if before, ok := all[part+": "+name]; ok && !before.passed && !before.skipped {
			one = before // one of several of the name that failed
		}
		all[part+": "+name] = one
	}
	all[part] = result{passed: ended == nil, part: part}
	return all
}

// A report of Python's tests, and what Redis' print: passed, failed and left out, and what is worse than before.
func TestSuiteResults(t *testing.T) {
	got, err := pythonResults([]byte(`<testsuites><testsuite><testcase name="test.test_socket.A.a" result="completed"/>
<testcase name="test.test_socket.A.b"><failure type="X">...</failure></testcase>
<testcase name="test.test_asyncio.test_streams.B.c"><skipped/></testcase>
<testcase name="test.test_ssl.C.d"><error type="X">...</error></testcase></testsuite></testsuites>`))
	want := results{"test.test_socket.A.a": {true, false, "test_socket"},
		"test.test_socket.A.b":               {false, false, "test_socket"},
		"test.test_asyncio.test_streams.B.c": {false, true, "test_asyncio"}, "test.test_ssl.C.d": {false, false, "test_ssl"}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if failed := got.failed(); !slices.Equal(failed, []string{"test.test_socket.A.b", "test.test_ssl.C.d"}) ||
		got.passed() != 1 {
		t.Errorf("%v failed, %d passed", failed, got.passed())
	}
	plain := redisResults("unit/a",
		"[ok]: SET (3 ms)\n[ok]: GET (0 ms)\n[ok]: TTL\n[ok]: twice\n[skip]: DEL\n[1/1 done]: unit/a (3 seconds)\n", nil)
	fast := redisResults("unit/a",
		"[ok]: SET (3 ms)\n[skip]: TTL\n[err]: twice in tests/unit/a.tcl\nExpected 1\n[ok]: twice (1 ms)\n", os.ErrInvalid)
	worse := []string{"unit/a", "unit/a: GET", "unit/a: TTL", "unit/a: twice"}
	if got := fast.worse(plain); !slices.Equal(got, worse) {
		t.Errorf("%q", got)
	}
	if worse := plain.worse(plain); len(worse) > 0 || plain.passed() != 5 {
		t.Errorf("%q, %d passed", worse, plain.passed())
	}
}
