// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kerb-edge/kerb/internal/pkttest"
)

// TestPackageScripts runs testdata/package/*.txtar with `package` and `model`, which work on files there.
// It runs in this process, whose directory is not the script's: directories are written with $WORK.
func TestPackageScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/package",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"package": func(ts *testscript.TestScript, fails bool, args []string) { runNoun(ts, "package", fails, args) },
			"model":   func(ts *testscript.TestScript, fails bool, args []string) { runNoun(ts, "model", fails, args) },
		},
		Condition: func(cond string) (bool, error) { return cond == "root" && os.Geteuid() == 0, nil },
	})
}

func runNoun(ts *testscript.TestScript, noun string, fails bool, args []string) {
	cmd := Root(Build{Version: "test"})
	cmd.SetArgs(append([]string{noun}, args...))
	cmd.SetOut(ts.Stdout())
	cmd.SetErr(ts.Stderr())
	err := cmd.Execute()
	if err != nil {
		fmt.Fprintln(ts.Stderr(), err)
	}
	if fails && err == nil {
		ts.Fatalf("%s %v did not fail", noun, args)
	}
	if !fails {
		ts.Check(err)
	}
}

// Only the newest verifier logs of a user are kept.
func TestOldVerifierLogsAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for range 3 * keptLogs {
		saveLog(io.Discard, "log")
	}
	if all, _ := filepath.Glob(filepath.Join(os.TempDir(), "kerb-verifier-*.log")); len(all) != keptLogs {
		t.Errorf("%d logs are kept, want %d", len(all), keptLogs)
	}
}

// Tests of an author fail if a verdict, a reason or a packet is not as expected, and report the difference.
func TestPackageTest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	text := `
tests:
- name: right
  packets:
  - fields: {src: 192.0.2.1, dst: 192.0.2.2, udp: {src: 1, dst: 2}, payload: x}
    repeat: 3
    want: {verdict: next, unchanged: true, packet: {fields: {src: 192.0.2.1, dst: 192.0.2.2, udp: {src: 1, dst: 2}, payload: x}}}
- name: wrong
  hooks: [tc]
  direction: egress
  packets:
  - hex: "02000000000202000000000108060001"
    want: {verdict: drop, reason: policy, packet: {hex: "02000000000202000000000108060002"}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runRoot(t, "package", "test", "counter", "--file", file)
	for _, want := range []string{"ok    right (tc)", "ok    right (xdp)", "FAIL  wrong (tc)",
		"packet 1: verdict next, want drop; reason none, want policy; another packet: at byte 15: 01, want 02"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "1 tests failed: wrong") {
		t.Errorf("%v", err)
	}
}

// Verdicts are those of the module, on hooks too whose actions are the same for two of them.
func TestPackageTestVerdicts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	text := "tests:\n"
	verdicts := []string{"next", "drop", "reply", "redirect", "invalid"}
	for number, is := range verdicts {
		for _, want := range verdicts {
			text += fmt.Sprintf("- name: %s for %s\n  config: {verdict: %d, ifindex: 1}\n", is, want, number) +
				"  packets:\n  - hex: '02000000000202000000000108060001'\n" + fmt.Sprintf("    want: {verdict: %s}\n", want)
		}
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runRoot(t, "package", "test", "../dataplane/testdata/verdict", "--file", file)
	for _, is := range verdicts {
		for _, want := range verdicts {
			for _, hook := range []string{"tc", "xdp"} {
				result := "FAIL  "
				if is == want {
					result = "ok    "
				}
				if line := fmt.Sprintf("%s%s for %s (%s)\n", result, is, want, hook); !strings.Contains(out, line) {
					t.Errorf("no %q: %v", line, err)
				}
			}
		}
	}
}

// All errors in a file with tests are reported at once, with line and column.
func TestPackageTestMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "test.yaml")
	for text, want := range map[string][]string{
		"confg: {}\ntests:\n- packets:\n  - {hex: x, repat: 2}\n  - want: {\n     verdict: drp}\n": {
			"1:1: confg: unknown field; known are config, tests; did you mean config?",
			"3:3: tests[0]: missing name",
			"4:14: tests[0].packets[0].repat: unknown field; known are ",
			"6:6: tests[0].packets[1].want.verdict: is drp; want one of next, drop"},
		"tests:\n- name: x\n  packets:\n  - fields: {src: 192.0.2.1, dst: 192.0.2.2, udp: {dst: 070, src: 70000}}\n": {
			"4:57: tests[0].packets[0].fields.udp.dst: 070: YAML 1.1 reads a number that begins with 0 as octal, here as"},
		"tests:\n- name: x\n  packets:\n  - fields: {src: x, dst: 192.0.2.2, udp: {src: 70000}}\n": {
			"4:14: tests[0].packets[0].fields.src: \"x\": want an IP address",
			"4:44: tests[0].packets[0].fields.udp.src: is 70000; want at most 65535"},
		"config: {defaultPolcy: {}}\ntests:\n- name: x\n  config: {\n    defaultPolicy: {ingress: maybe}}\n" +
			"  packets:\n  - hex: x\n- name: other\n  packets:\n  - {}\n": {
			"1:10: config.defaultPolcy: unknown field; ", "5:21: tests[0].config.defaultPolicy.ingress: ",
			"7:5: tests[0].packets[0]: encoding/hex",
			"10:5: tests[1].packets[0]: set exactly one of"},
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := runRoot(t, "package", "test", "firewall", "--file", file)
		lines := strings.Split(fmt.Sprint(err), "\n")
		if len(lines) != len(want) {
			t.Errorf("%d mistakes in\n%s\nwant %d:\n%v", len(lines), text, len(want), err)
			continue
		}
		for i, line := range lines {
			if !strings.HasPrefix(line, file+":"+want[i]) {
				t.Errorf("got  %s\nwant %s:%s", line, file, want[i])
			}
		}
	}
}

// A capture is run without expectations, and the stateful firewall sees its packets one after the other.
func TestPackageTestOfACapture(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	frames, err := pkttest.Packet{Fields: &pkttest.Fields{Src: netip.MustParseAddr("192.0.2.1"),
		Dst: netip.MustParseAddr("192.0.2.2"),
		TCP: &pkttest.TCP{Ports: pkttest.Ports{Src: 4000, Dst: 80}, Flags: "S"}}}.Frames("")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "capture.pcap")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(f)
	err = errors.Join(w.WriteFileHeader(65535, layers.LinkTypeEthernet),
		w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: len(frames[0]), Length: len(frames[0])},
			frames[0]), f.Close())
	if err != nil {
		t.Fatal(err)
	}
	out, err := runRoot(t, "package", "test", "firewall", "--pcap", path, "--hook", "tc")
	if err != nil || !regexp.MustCompile(`1 +tc +ingress +60 +drop +policy`).MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPackageHeaders(t *testing.T) {
	dir := t.TempDir()
	if _, err := runRoot(t, "package", "headers", dir); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "kerb", "module.h")); err != nil || len(text) == 0 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

func runRoot(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := Root(Build{Version: "test"})
	var out bytes.Buffer
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}
