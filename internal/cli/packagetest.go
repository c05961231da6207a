// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/decode"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/internal/yamldoc"
)

// packageTests is the file test.yaml of a package.
type packageTests struct {
	Config map[string]any `json:"config,omitempty"` // default for tests
	Tests  []packageCase  `json:"tests"`

	file      string
	positions yamldoc.Index
}

// dir returns the directory to which captures in the tests are relative.
func (t packageTests) dir() string { return filepath.Dir(t.file) }

// packageCase is a sequence of packets through one loaded chain: maps keep their content between packets.
type packageCase struct {
	Name      string         `json:"name"`
	Config    map[string]any `json:"config,omitempty"`
	Hooks     []string       `json:"hooks,omitempty" enum:"tc,xdp"` // absent: those of the package
	Direction string         `json:"direction,omitempty" enum:"ingress,egress"`
	Packets   []packetCase   `json:"packets"`
}

// packetCase is a packet with the expected result.
type packetCase struct {
	pkttest.Packet
	Direction string       `json:"direction,omitempty" enum:"ingress,egress"` // absent: that of the test
	Repeat    int          `json:"repeat,omitempty" minimum:"1"`              // how often the packet is sent
	Want      *expectation `json:"want,omitempty"`
}

type expectation struct {
	Verdict   string          `json:"verdict,omitempty" enum:"next,drop,reply,redirect,invalid"`
	Reason    string          `json:"reason,omitempty"`
	Packet    *pkttest.Packet `json:"packet,omitempty"`
	Unchanged bool            `json:"unchanged,omitempty"`
}

// packetResult is the result of one packet.
type packetResult struct {
	Test      string `json:"test"`
	Hook      string `json:"hook"`
	Direction string `json:"direction"`
	Packet    int    `json:"packet"` // from 1
	Verdict   string `json:"verdict"`
	Reason    string `json:"reason,omitempty"`
	Out       string `json:"packetOut,omitempty"` // hexadecimal, if it was changed
	Problem   string `json:"problem,omitempty"`
	in, out   []byte
}

func (a *app) packageTestCommand() *cobra.Command {
	var f storeFlags
	var file, pcap, direction, hook string
	c := answers(&cobra.Command{
		Use:   "test DIR|NAME|REFERENCE",
		Short: "Run packets through a package in the kernel, and compare verdicts and packets",
		Long: `Links the package into a chain of one as the agent does, runs packets through it by BPF_PROG_TEST_RUN, and compares the
results with test.yaml in the package's directory. Nothing is attached; no packet is sent. Needs root, or CAP_BPF and
CAP_NET_ADMIN. With --pcap it prints the verdict on each packet of a capture.

  config: {port: 9999, drop: true}
  tests:
  - name: datagrams to the port are dropped
    direction: ingress                    # egress: from the service
    packets:
    - fields: {src: 192.0.2.1, dst: 192.0.2.2, udp: {src: 4000, dst: 9999}, payload: hello}
      want: {verdict: drop, reason: blocked_port}
    - hex: "0200000000010200000000020800..."
      want: {verdict: next, unchanged: true}`,
		Example: "  kerb package test ./udp-watch\n  kerb package test counter --pcap capture.pcap --direction ingress",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := findPackage(cmd, &f, args[0])
			if err != nil {
				return packageFault(err)
			}
			tests, err := readTests(args[0], file, pcap, direction)
			if err == nil {
				err = tests.check(p)
			}
			if err != nil {
				return err
			}
			if hook != "" {
				for i := range tests.Tests {
					tests.Tests[i].Hooks = []string{hook}
				}
			}
			results, err := runTests(p, tests)
			if err != nil {
				return packageFault(err)
			}
			printed := a.print(cmd.OutOrStdout(), results, func(w io.Writer) { printResults(w, results, pcap != "") })
			return errors.Join(failures(results), printed)
		},
	})
	f.add(c)
	flags := c.Flags()
	flags.StringVar(&file, "file", "", "file with tests (default: test.yaml in the directory of the package)")
	flags.StringVar(&pcap, "pcap", "", "capture (pcap or pcapng) whose packets are run, without expectations")
	flags.StringVar(&direction, "direction", "ingress", "of the packets in the capture: ingress or egress")
	flags.StringVar(&hook, "hook", "", "only this hook: tc or xdp")
	c.MarkFlagsMutuallyExclusive("file", "pcap")
	return c
}

// readTests reads the tests, or creates one from a capture.
func readTests(ref, file, pcap, direction string) (t packageTests, err error) {
	if pcap != "" {
		one := packageCase{Name: filepath.Base(pcap), Direction: direction,
			Packets: []packetCase{{Packet: pkttest.Packet{Pcap: pcap}}}}
		return packageTests{Tests: []packageCase{one}}, nil
	}
	t.file = cmp.Or(file, filepath.Join(ref, "test.yaml"))
	data, err := os.ReadFile(t.file)
	if err != nil {
		return t, err
	}
	if t.positions, err = decode.File(t.file, data, &t); err == nil && len(t.Tests) == 0 {
		err = t.positions.Locate(t.file, &apierrors.Invalid{Field: "tests", Reason: "contains no test"})
	}
	return t, err
}

// check returns all errors in configs and packets, with their locations.
func (t packageTests) check(p *pkgs.Package) error {
	wrong := []error{checkConfig(p, t.Config, "config")}
	for i, c := range t.Tests {
		field := fmt.Sprintf("tests[%d].", i)
		if c.Config != nil {
			wrong = append(wrong, checkConfig(p, c.Config, field+"config"))
		}
		for j, packet := range c.Packets {
			wrong = append(wrong, packet.check(fmt.Sprintf("%spackets[%d]", field, j), t.dir()))
		}
	}
	if !slices.ContainsFunc(t.Tests, func(c packageCase) bool { return c.Config == nil }) {
		wrong = wrong[1:]
	}
	return t.positions.Locate(t.file, errors.Join(wrong...))
}

// checkConfig returns the errors in a config; field is its location.
func checkConfig(p *pkgs.Package, config map[string]any, field string) error {
	_, err := moduleOf(p, config)
	for _, e := range apierrors.Invalids(err) {
		e.Field = field + strings.TrimPrefix(e.Field, "config")
	}
	return err
}

func (c packetCase) check(field, dir string) error {
	if _, err := c.Frames(dir); err != nil {
		return &apierrors.Invalid{Field: field, Reason: err.Error()}
	}
	if c.Want == nil || c.Want.Packet == nil {
		return nil
	}
	frames, err := c.Want.Packet.Frames(dir)
	if err == nil && len(frames) != 1 {
		err = fmt.Errorf("must be one packet, not %d", len(frames))
	}
	if err != nil {
		return &apierrors.Invalid{Field: field + ".want.packet", Reason: err.Error()}
	}
	return nil
}

// runTests runs each test on its hooks, by default all of the package. Maps are empty at the start of each test and
// hook, and are kept from packet to packet.
func runTests(p *pkgs.Package, tests packageTests) (all []packetResult, err error) {
	if p.HasHook(pkgs.HookSockets) {
		return nil, &apierrors.Invalid{Reason: "the package runs on sockets, which the kernel offers no test run for"}
	}
	for _, t := range tests.Tests {
		if t.Config == nil {
			t.Config = tests.Config
		}
		for _, hook := range p.Hooks {
			if len(t.Hooks) > 0 && !slices.Contains(t.Hooks, hook) {
				continue
			}
			results, err := runTest(p, t, hook, tests.dir())
			if err != nil {
				return all, fmt.Errorf("%s, %s: %w", t.Name, hook, err)
			}
			all = append(all, results...)
		}
	}
	return all, nil
}

// runTest runs the packets of a test through the package in the kernel (BPF_PROG_TEST_RUN), and returns their results.
func runTest(p *pkgs.Package, t packageCase, hook, dir string) (all []packetResult, err error) {
	module, err := moduleOf(p, t.Config)
	if err != nil {
		return nil, err
	}
	b, err := pkttest.NewBench(p, hook, module)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	for _, c := range t.Packets {
		frames, err := c.Frames(dir)
		if err != nil {
			return all, err
		}
		for range max(c.Repeat, 1) {
			for _, frame := range frames {
				direction := cmp.Or(c.Direction, t.Direction, "ingress")
				got, err := b.Run(direction, frame)
				if err != nil {
					return all, err
				}
				r := packetResult{Test: t.Name, Hook: hook, Direction: direction, Packet: len(all) + 1,
					Verdict: got.Verdict, Reason: got.Reason, in: frame, out: got.Packet}
				if !bytes.Equal(r.in, r.out) {
					r.Out = hex.EncodeToString(r.out)
				}
				if r.Problem, err = c.Want.compare(r, dir); err != nil {
					return all, err
				}
				all = append(all, r)
			}
		}
	}
	return all, nil
}

// compare returns a description of the first difference from the expected result.
func (e *expectation) compare(r packetResult, dir string) (problem string, err error) {
	if e == nil {
		return "", nil
	}
	var wrong []string
	if e.Verdict != "" && e.Verdict != r.Verdict {
		wrong = append(wrong, fmt.Sprintf("verdict %s, want %s", r.Verdict, e.Verdict))
	}
	if e.Reason != "" && e.Reason != r.Reason {
		wrong = append(wrong, fmt.Sprintf("reason %s, want %s", cmp.Or(r.Reason, "none"), e.Reason))
	}
	if e.Unchanged && r.Out != "" {
		wrong = append(wrong, "the packet was changed: "+difference(r.in, r.out))
	}
	if e.Packet != nil {
		frames, err := e.Packet.Frames(dir)
		if err != nil {
			return "", err
		}
		if !bytes.Equal(frames[0], r.out) {
			wrong = append(wrong, "another packet: "+difference(frames[0], r.out))
		}
	}
	return strings.Join(wrong, "; "), nil
}

// difference describes the first byte in which two packets differ.
func difference(want, got []byte) string {
	if len(want) != len(got) {
		return fmt.Sprintf("%d bytes, want %d", len(got), len(want))
	}
	for i := range want {
		if want[i] != got[i] {
			end := min(i+8, len(want))
			return fmt.Sprintf("at byte %d: %x, want %x", i, got[i:end], want[i:end])
		}
	}
	return "none"
}

// printResults prints a line for each test, or with each, for captures without expectations, for each packet.
func printResults(w io.Writer, all []packetResult, each bool) {
	if each {
		line(w, "PACKET", "HOOK", "DIRECTION", "LENGTH", "VERDICT", "REASON", "CHANGED")
		for _, r := range all {
			changed := ""
			if r.Out != "" {
				changed = difference(r.in, r.out)
			}
			line(w, r.Packet, r.Hook, r.Direction, len(r.in), r.Verdict, r.Reason, changed)
		}
		return
	}
	type key struct{ test, hook string }
	var order []key
	wrong := map[key][]string{}
	for _, r := range all {
		k := key{r.Test, r.Hook}
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
		if r.Problem != "" {
			wrong[k] = append(wrong[k], fmt.Sprintf("packet %d: %s", r.Packet, r.Problem))
		}
	}
	for _, k := range order {
		if len(wrong[k]) == 0 {
			fmt.Fprintf(w, "ok    %s (%s)\n", k.test, k.hook)
			continue
		}
		fmt.Fprintf(w, "FAIL  %s (%s)\n", k.test, k.hook)
		for _, text := range wrong[k] {
			fmt.Fprintf(w, "      %s\n", text)
		}
	}
}

func failures(all []packetResult) error {
	failed := map[string]bool{}
	for _, r := range all {
		if r.Problem != "" {
			failed[r.Test] = true
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d tests failed: %s", len(failed), strings.Join(slices.Sorted(maps.Keys(failed)), ", "))
}
