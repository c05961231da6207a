// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
	modules "github.com/kerb-edge/kerb/modules/accelerator"
)

// suite is a test suite of a program or language, which uses TCP within one network namespace.
type suite struct {
	name    string
	fewest  int // minimum of passed tests; fewer mean that it did not run
	prepare func(t *testing.T, dir string) (prepared, error)
}

type prepared struct {
	programs []string // to allow, in addition to the known ones
	parts    []string // all files
	run      func(t *testing.T, command commander, part string) results
}

// commander prepares a process, on plain TCP or on accelerated connections.
type commander func(ctx context.Context, name string, args ...string) *exec.Cmd

// results are by the names of tests.
type results map[string]result

type result struct {
	passed, skipped bool
	part            string // the part that contains it
}

func (r results) passed() (n int) {
	for _, one := range r {
		if one.passed {
			n++
		}
	}
	return n
}

// failed returns the tests that did not pass, without those that the suite itself skipped.
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

// worse returns the tests that passed in plain and not in r, where they may be skipped or missing.
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
	{"redis", 2000, redis},
	{"redis-cluster", 200, redisInstances("cluster")},
	{"redis-sentinel", 50, redisInstances("sentinel")},
}

// Tests of other projects pass between sockets whose messages are redirected if they pass on plain TCP, which they
// first run on, outside the module's cgroup. Tests that pass only sometimes, such as tests with timeouts on a busy
// machine, have three attempts.
func TestSuites(t *testing.T) {
	wanted := os.Getenv("KERB_SUITES")
	if wanted == "" {
		t.Skip("takes an hour and a half: make test-suites")
	}
	for _, s := range suites {
		if slices.Contains(strings.Split(wanted, ","), s.name) {
			t.Run(s.name, s.test)
		}
	}
}

func (s suite) test(t *testing.T) {
	n := newNode(t)
	p, err := s.prepare(t, n.Dir)
	if err != nil {
		t.Fatalf("run scripts/setup suites: %v", err)
	}
	parts := strings.Fields(os.Getenv("KERB_SUITE_PARTS"))
	all := len(parts) == 0
	if all {
		parts = p.parts
	}
	n.Start()
	var sum tally
	var without []string // files without redirected messages: equal results there prove nothing
	for _, part := range parts {
		one := p.compare(t, n, part)
		sum = tally{sum.plain + one.plain, sum.fast + one.fast, sum.messages + one.messages}
		if one.messages == 0 {
			without = append(without, part)
		}
	}
	t.Logf("%d files: %d tests passed on plain TCP, %d on accelerated connections; %d messages redirected, none of %q",
		len(parts), sum.plain, sum.fast, sum.messages, without)
	if sum.plain < s.fewest && all || sum.messages == 0 {
		t.Errorf("%d tests passed on plain TCP, %d messages were redirected", sum.plain, sum.messages)
	}
}

// tally counts the tests that passed, and the messages that were redirected.
type tally struct {
	plain, fast int
	messages    uint64
}

// compare runs a part on plain TCP and on accelerated connections.
func (p prepared) compare(t *testing.T, n *node, part string) tally {
	began := time.Now()
	plain := p.run(t, n.a.Command, part)
	middle := time.Now()
	fast, seen := p.accelerated(t, n, part)
	t.Logf("%s: plain TCP: %d passed, %d failed %q, %.0f s; accelerated: %d passed, %d failed %q, %.0f s, %d messages of "+
		"%d connections, refused %v", part, plain.passed(), len(plain.failed()), plain.failed(),
		middle.Sub(began).Seconds(), fast.passed(), len(fast.failed()), fast.failed(), time.Since(middle).Seconds(),
		seen.Messages, seen.Accelerated, seen.Refused)
	worse := fast.worse(plain)
	for attempt := 2; len(worse) > 0 && attempt <= 3; attempt++ {
		t.Logf("%s: %q did not pass; attempt %d", part, worse, attempt)
		again, _ := p.accelerated(t, n, part)
		worse = slices.DeleteFunc(worse, func(name string) bool { return again[name].passed })
	}
	if len(worse) > 0 {
		t.Errorf("passed on plain TCP, never on accelerated connections: %q", worse)
	}
	return tally{plain.passed(), fast.passed(), seen.Messages}
}

// accelerated runs a part with a new module: a module that has observed a program block in recv excludes it from then
// on, for example redis-server, which so loads a replica's data.
func (p prepared) accelerated(t *testing.T, n *node, part string) (results, modules.PairReport) {
	// Short connections, too, and from their first message on: tests make many, to few ports.
	m := kerbnode.Module("fast", "accelerator", "", map[string]any{"programs": map[string]any{"allow": p.programs},
		"thresholds": map[string]any{"turns": 0, "minTurns": 0, "retry": 1}})
	m.Spec.Attach.Cgroups = []string{n.cgroup.Name()}
	n.Apply(m)
	n.Eventually("the module answers", func() bool { return n.Get("/v1/modules/fast/pairs", nil) == nil })
	r := p.run(t, func(ctx context.Context, name string, args ...string) *exec.Cmd {
		return n.command(ctx, n.a, name, args...)
	}, part)
	seen := n.pairReport()
	n.Must(http.MethodDelete, "/v1/modules/fast", nil, nil)
	return r, seen
}

// networkTests are CPython's tests of sockets, of polling, and of protocols over TCP.
var networkTests = strings.Fields("test_asynchat test_asyncio test_asyncore test_docxmlrpc test_epoll test_ftplib " +
	"test_httplib test_httpservers test_imaplib test_nntplib test_poll test_poplib test_select test_selectors " +
	"test_smtpd test_smtplib test_socket test_socketserver test_ssl test_telnetlib test_urllib2_localnet test_wsgiref " +
	"test_xmlrpc")

// python runs the tests of the installed version, with the interpreter itself: on PATH there may be a wrapper script.
func python(_ *testing.T, dir string) (p prepared, err error) {
	out, err := exec.Command("python3", "-c",
		"import os, sys, test; print(os.path.realpath(sys.executable), os.path.dirname(test.__file__))").Output()
	paths := strings.Fields(string(out))
	if err == nil && len(paths) != 2 {
		err = fmt.Errorf("its paths are %q", out)
	}
	if err != nil {
		return p, fmt.Errorf("python3: %w", err)
	}
	for _, name := range networkTests {
		if found, _ := filepath.Glob(filepath.Join(paths[1], name+"*")); len(found) > 0 {
			p.parts = append(p.parts, name)
		}
	}
	if len(p.parts) < len(networkTests)/2 {
		return p, fmt.Errorf("Python's tests are not installed: %s has only %v", paths[1], p.parts)
	}
	p.programs = paths[:1]
	p.run = func(t *testing.T, command commander, part string) results {
		report := filepath.Join(dir, "report.xml")
		_ = os.Remove(report) // of the part before
		// Connections to the hypervisor do not use TCP, and not all machines support them.
		args := []string{"-m", "test", "--timeout", "600", "--ignore", "*VSOCK*", "--junit-xml", report, part}
		if part == "test_socketserver" { // tests of other files with -u network connect to servers on the Internet
			args = append(args, "-u", "network")
		}
		cmd := command(t.Context(), paths[0], args...)
		cmd.Dir = dir
		said, _ := cmd.CombinedOutput() // fails if a test does
		text, err := os.ReadFile(report)
		if err != nil {
			t.Fatalf("python3 -m test: %v: %s", err, said)
		}
		r, err := pythonResults(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	return p, nil
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

// slowOnly are files of Redis whose tests are all marked slow. Slow tests of other files do not run.
var slowOnly = []string{"unit/querybuf", "unit/type/list-2"}

// redis runs the tests of Redis' source with the installed programs.
func redis(_ *testing.T, dir string) (p prepared, err error) {
	tclsh, err := redisSource(dir)
	if err != nil {
		return p, err
	}
	list := exec.Command(tclsh, "tests/test_helper.tcl", "--list-tests")
	list.Dir = dir
	out, err := list.Output()
	if err != nil {
		return p, fmt.Errorf("tclsh tests/test_helper.tcl --list-tests: %w", err)
	}
	p.parts = strings.Fields(string(out))
	p.programs = []string{tclsh, "redis-cli"} // it gets no signals, which it would have to handle
	p.run = func(t *testing.T, command commander, part string) results {
		// One file per run: a test that aborts the run affects only its file.
		args := []string{"tests/test_helper.tcl", "--clients", "1", "--timeout", "300", "--single", part}
		if !slices.Contains(slowOnly, part) {
			args = append(args, "--tags", "-slow")
		}
		if part == "unit/tls" {
			certificates(t, dir)
			args = append(args, "--tls")
		}
		cmd := command(t.Context(), tclsh, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "TERM=dumb")
		said, err := cmd.CombinedOutput()
		return redisResults(part, string(said), err)
	}
	return p, nil
}

// redisInstances runs the tests of clusters or of Sentinel, each file with some 20 servers.
func redisInstances(of string) func(_ *testing.T, dir string) (p prepared, err error) {
	return func(_ *testing.T, dir string) (p prepared, err error) {
		tclsh, err := redisSource(dir)
		if err != nil {
			return p, err
		}
		found, err := filepath.Glob(filepath.Join(dir, "tests", of, "tests", "*.tcl"))
		if err != nil || len(found) == 0 {
			return p, fmt.Errorf("no tests of %s: %w", of, err)
		}
		for _, file := range found {
			p.parts = append(p.parts, strings.TrimSuffix(filepath.Base(file), ".tcl"))
		}
		p.programs = []string{tclsh, "redis-cli"}
		p.run = func(t *testing.T, command commander, part string) results {
			cmd := command(t.Context(), tclsh, "tests/"+of+"/run.tcl", "--single", "/"+part+".tcl")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "TERM=dumb")
			said, err := cmd.CombinedOutput()
			return instanceResults(part, string(said), err)
		}
		return p, nil
	}
}

// redisSource copies the tests of Redis' source to a directory, with links to the installed programs, and returns the
// interpreter.
func redisSource(dir string) (tclsh string, err error) {
	const source = "../../out/redis-suite/source"
	for _, part := range []string{"tests", "utils"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(source, part))); err != nil {
			return "", err
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		return "", err
	}
	for name, program := range map[string]string{"server": "server", "sentinel": "server", "cli": "cli",
		"benchmark": "benchmark", "check-aof": "check-aof", "check-rdb": "check-rdb"} {
		path, err := exec.LookPath("redis-" + program)
		if err != nil {
			return "", err
		}
		if err := os.Symlink(path, filepath.Join(dir, "src", "redis-"+name)); err != nil {
			return "", err
		}
	}
	if tclsh, err = exec.LookPath("tclsh"); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(tclsh)
}

// certificates creates the certificates of Redis' tests with TLS. The parameters of Diffie-Hellman are a known group,
// since generating them takes minutes.
func certificates(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "tests/tls/redis.crt")); err == nil {
		return
	}
	cmd := exec.Command("bash", "-c", "mkdir -p tests/tls && openssl genpkey -genparam -algorithm DH "+
		"-pkeyopt group:ffdhe2048 -out tests/tls/redis.dh && utils/gen-test-certs.sh")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("certificates: %v: %s", err, out)
	}
}

const randomPart = "integration/psync2"

var (
	// randomName matches the parts of test names that differ from run to run: those of instances, and of randomPart.
	randomName   = regexp.MustCompile(`#\d+|\(x = \d+\)|127\.0\.0\.1:\d+`)
	redisTest    = regexp.MustCompile(`(?m)^\[(ok|err|skip|ignore)\]: (.*?)(?: \(\d+ ms\))?$`)
	instanceTest = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d> (.*): (OK|FAILED.*)$`)
)

// redisResults parses the output of runtest for a file.
func redisResults(part, said string, ended error) results {
	all := results{part: {passed: ended == nil, part: part}}
	for _, m := range redisTest.FindAllStringSubmatch(said, -1) {
		name, _, _ := strings.Cut(m[2], " in tests/") // as in the names of failed ones
		if part == randomPart {
			name = randomName.ReplaceAllString(name, "#")
		}
		all.add(part+": "+name, result{passed: m[1] == "ok", skipped: m[1] == "skip" || m[1] == "ignore", part: part})
	}
	return all
}

// instanceResults parses the output of runtest-cluster or runtest-sentinel for a file.
func instanceResults(part, said string, ended error) results {
	all := results{part: {passed: ended == nil, part: part}}
	for _, m := range instanceTest.FindAllStringSubmatch(said, -1) {
		all.add(part+": "+randomName.ReplaceAllString(m[1], "#"), result{passed: m[2] == "OK", part: part})
	}
	return all
}

// add keeps the failed result of several tests of one name.
func (r results) add(name string, one result) {
	if before, ok := r[name]; !ok || before.passed || before.skipped {
		r[name] = one
	}
}

// Reports of Python's tests and output of Redis': passed, failed and skipped, and what is worse than before.
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
	fast := redisResults(randomPart,
		"[ok]: Set #0 to replicate from #3 (1 ms)\n[err]: Set #1 to follow #2\n[ok]: load (x = 17) (2 ms)\n", nil)
	want = results{randomPart: {true, false, randomPart},
		randomPart + ": Set # to replicate from #": {true, false, randomPart},
		randomPart + ": Set # to follow #":         {false, false, randomPart},
		randomPart + ": load #":                    {true, false, randomPart}}
	if !maps.Equal(fast, want) {
		t.Errorf("%v", fast)
	}
	cluster := instanceResults("00-base",
		"18:01:02> Join: OK\n18:01:03> Writable: FAILED: no\n18:01:04> Join: OK\nWARNING 1\n", os.ErrInvalid)
	want = results{"00-base": {false, false, "00-base"}, "00-base: Join": {true, false, "00-base"},
		"00-base: Writable": {false, false, "00-base"}}
	if !maps.Equal(cluster, want) {
		t.Errorf("%v", cluster)
	}
	plain := redisResults("unit/a",
		"[ok]: SET (3 ms)\n[ok]: GET (0 ms)\n[ok]: TTL\n[ok]: twice\n[skip]: DEL\n[1/1 done]: unit/a (3 seconds)\n", nil)
	fast = redisResults("unit/a",
		"[ok]: SET (3 ms)\n[skip]: TTL\n[err]: twice in tests/unit/a.tcl\nExpected 1\n[ok]: twice (1 ms)\n", os.ErrInvalid)
	worse := []string{"unit/a", "unit/a: GET", "unit/a: TTL", "unit/a: twice"}
	if got := fast.worse(plain); !slices.Equal(got, worse) {
		t.Errorf("%q", got)
	}
	if worse := plain.worse(plain); len(worse) > 0 || plain.passed() != 5 {
		t.Errorf("%q, %d passed", worse, plain.passed())
	}
}
