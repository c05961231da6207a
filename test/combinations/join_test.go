// SPDX-License-Identifier: Apache-2.0

package combinations

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Traces of two nodes are joined: a packet through the tunnel has the modules of both nodes in order, with the time of
// each, and so has the reply.
func TestJoinedTraces(t *testing.T) {
	f := newField(t)
	packages := []string{"counter", "proxy", "tunnel"}
	f.deploy(packages)
	c := &combination{field: f, packages: packages}
	far := f.servers[1]
	files, begin := f.record(func() { c.checkReply(netip.AddrPortFrom(far.addresses(true)[0], livePort)) }, func() {
		for _, addr := range far.addresses(true) { // also those that the proxy translates
			for range 5 {
				c.checkReply(netip.AddrPortFrom(addr, livePort))
			}
			c.checkStream(netip.AddrPortFrom(addr, livePort))
		}
	})
	client, server := "near client egress", "far far ingress"
	ways := map[string][]v1.TracedPacket{}
	joined := joinTraces(t, f, append(files, "-o", "json")...)
	for lines := json.NewDecoder(strings.NewReader(joined)); lines.More(); {
		var p v1.TracedPacket
		if err := lines.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.Time.Before(begin) { // possibly traced by one node only
			continue
		}
		way := where(p)
		for _, then := range p.Then {
			way += ", " + where(then)
		}
		ways[way] = append(ways[way], p)
	}
	for _, want := range []string{client + ", far wire ingress, " + server,
		"far far egress, near wire ingress, near client ingress"} {
		for _, protocol := range []string{"udp", "tcp"} {
			for _, v6 := range []bool{false, true} {
				i := slices.IndexFunc(ways[want], func(p v1.TracedPacket) bool {
					return p.Protocol == protocol && strings.HasPrefix(p.Source, "[") == v6
				})
				if i < 0 {
					t.Errorf("no packet of %s (IPv6 %v) on the way %q", protocol, v6, want)
					continue
				}
				p := ways[want][i]
				for _, at := range append([]v1.TracedPacket{p}, p.Then...) {
					if len(at.Steps) == 0 || at.Steps[0].Nanoseconds == 0 {
						t.Errorf("without times: %+v", at)
					}
				}
			}
		}
	}
	if alone := len(ways[client]); alone > 0 { // for example if a trace has lost events
		t.Logf("%d packets into the tunnel are at no other node: %+v", alone, ways[client][0])
	}
	if text := joinTraces(t, f, append(files, "--times")...); !strings.Contains(text, " > far far ingress ") ||
		!strings.Contains(text, " near client egress ") || !strings.Contains(text, " ns") {
		t.Errorf("for people:\n%s", text)
	}
}

func where(p v1.TracedPacket) string {
	if p.Service == "" {
		return p.Node + " wire " + p.Direction
	}
	return p.Node + " " + p.Service + " " + p.Direction
}

// record traces all packets on both nodes during do, each to a file with the node's name. A datagram shows that a trace
// runs. do starts at begin.
func (f *field) record(datagram, do func()) (files []string, begin time.Time) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	dir := f.t.TempDir()
	var ended []func()
	for i, name := range []string{"near", "far"} {
		file, err := os.OpenFile(filepath.Join(dir, name+".json"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
		if err != nil {
			f.t.Fatal(err)
		}
		cmd := f.nodes[i].Command(ctx, "trace", "-o", "json", "--count", "0", "--for", "4m")
		cmd.Stdout = file
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		if err := cmd.Start(); err != nil {
			f.t.Fatal(err)
		}
		ended = append(ended, func() {
			if err := cmd.Wait(); err != nil && ctx.Err() == nil {
				f.t.Error(err)
			}
			file.Close()
		})
		f.nodes[i].Eventually("the trace runs", func() bool {
			datagram()
			info, err := file.Stat()
			return err == nil && info.Size() > 0
		})
		files = append(files, file.Name())
	}
	const shown = time.Second // more than the 100 ms within which a packet may have a further chain
	begin = time.Now()
	do()
	time.Sleep(shown) // until the files contain all traced packets
	cancel()
	for _, wait := range ended {
		wait()
	}
	return files, begin
}

// joinTraces returns the output of kerb trace join, which sends no request to the agent.
func joinTraces(t *testing.T, f *field, args ...string) string {
	t.Helper()
	cmd := f.nodes[0].Command(t.Context(), append([]string{"trace", "join"}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil || !strings.Contains(said.String(), "of them on several nodes") {
		t.Fatalf("kerb trace join: %v: %s", err, said.String())
	}
	return out.String()
}
