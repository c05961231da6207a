// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// flows returns the JSON output of kerb flows.
func (n *node) flows(args ...string) (flows []v1.Flow, missing []v1.MissingFlows) {
	n.T.Helper()
	return n.readFlows(strings.NewReader(n.must("flows", append(args, "-o", "json")...)))
}

func (n *node) readFlows(r io.Reader) (flows []v1.Flow, missing []v1.MissingFlows) {
	n.T.Helper()
	for lines := json.NewDecoder(r); ; {
		var l v1.FlowLine
		switch err := lines.Decode(&l); {
		case err == io.EOF:
			return flows, missing
		case err != nil || l.Error != "":
			n.T.Fatalf("%v %s", err, l.Error)
		case l.Missing != nil:
			missing = append(missing, *l.Missing)
		default:
			flows = append(flows, *l.Flow)
		}
	}
}

// An operator gets the flows of both services, while they are active and afterwards, also after the agent was killed.
// The flood of one service does not displace flows of others.
func TestFlows(t *testing.T) {
	n := newRunningNode(t)
	n.refused(n.kerb("flows"), 5, "no module records flows", "package: flows")
	cam, viewer := n.Host("cam"), n.Host("viewer")
	n.apply(service(cam), service(viewer))
	n.apply(module("flows", "flows", "*", map[string]any{"flows": 64}))
	web := startRequests(t, n.db, n.web)
	var got []v1.Flow
	n.Eventually("connections are recorded", func() bool {
		got, _ = n.flows("--service", "web", "--protocol", "tcp", "--port", "8080")
		got = slices.DeleteFunc(got, func(f v1.Flow) bool { return f.State == "opening" }) // the newest may be
		return len(got) > 1
	})
	for _, f := range got {
		if f.SourceService != "db" || f.DestinationService != "web" || f.Direction != "ingress" ||
			f.DestinationPort != webPort || f.Verdict != "next" || f.Connections != 1 || f.Packets == 0 ||
			f.ReplyPackets == 0 || f.ToResponderNanoseconds == 0 || f.ToInitiatorNanoseconds == 0 {
			t.Errorf("%+v", f)
		}
	}
	got, _ = n.flows("--service", "db", "--peer", n.web.Addr4().String())
	if len(got) == 0 || got[0].Direction != "egress" || got[0].SourceService != "db" ||
		got[0].DestinationService != "web" {
		t.Errorf("%+v", got)
	}
	if got, _ = n.flows("--peer", "203.0.113.0/24"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	n.expect("flows", nil, "SOURCE", "db("+n.db.Addr4().String()+":", "web("+n.web.Addr4().String()+":8080)", "next")
	n.expect("flows", []string{"--since", "5m"}, "web:8080", " flows")
	n.followFlows()
	n.flowsInFiles()
	n.flood(n.db, n.web.Addr4())
	_, missing := n.flows("--count", "1")
	floods := map[string]uint64{}
	for _, m := range missing {
		floods[m.Service] = m.UnrecordedPackets
	}
	if floods["web"] == 0 || floods["db"] == 0 || floods["cam"] != 0 {
		t.Errorf("%+v", missing)
	}
	n.followMissing("web", "db")
	other := startRequests(t, viewer, cam)
	n.Eventually("connections of other services are recorded", func() bool {
		got, _ = n.flows("--service", "cam", "--port", "8080")
		return len(got) > 0
	})
	n.apply(module("fw", "firewall", "app=web", map[string]any{"rules": []any{map[string]any{"action": "allow",
		"direction": "ingress", "protocol": "tcp"}}}))
	stop := n.sendDenied()
	n.Eventually("flows show what the firewall drops", func() bool {
		got, _ = n.flows("--service", "web", "--protocol", "udp", "--port", "9")
		return len(got) == 1 && got[0].Dropped > 10
	})
	stop() // a packet in flight is counted, and its drop is not
	if got, _ = n.flows("--service", "web", "--protocol", "udp", "--port", "9"); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	if f := got[0]; f.Verdict != "drop" || f.Dropped != f.Packets || f.DropModule != "fw" || f.DropReason != "policy" {
		t.Errorf("%+v", f)
	}
	n.Kill()
	n.start()
	n.Eventually("flows are there after a restart", func() bool {
		r := n.kerb("flows", "--service", "cam", "-o", "json")
		if r.code != 0 {
			return false
		}
		got, _ = n.readFlows(strings.NewReader(r.stdout))
		return len(got) > 0
	})
	web.finish()
	other.finish()
	n.refused(n.kerb("flows", "--service", "none"), 3, "none")
	n.refused(n.kerb("flows", "--peer", "web"), 2, "peer", "prefix")
	n.refused(n.kerb("flows", "--since", "2h"), 2, "at most 1h")
	n.checkPins()
}

// followFlows checks that flows are printed while they have packets.
func (n *node) followFlows() {
	n.T.Helper()
	var first *v1.Flow
	n.eachFlow(func(l v1.FlowLine) (done bool) {
		if l.Flow != nil && first == nil {
			first = l.Flow
			return false
		}
		return l.Flow != nil && l.First.Sub(*first.First) > 0 && l.Last.Sub(first.Last) > 1e9 // it started later
	}, "--service", "web")
}

// flowsInFiles checks that flows are written to files of a limited size and number, one object on each line.
func (n *node) flowsInFiles() {
	n.T.Helper()
	path := filepath.Join(n.T.TempDir(), "flows.json")
	c := n.Command(n.T.Context(), "flows", "--follow", "--service", "web", "--file", path, "--max-size", "4Ki",
		"--keep", "2")
	var errs strings.Builder
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.Eventually("the files rotate", func() bool {
		_, err := os.Stat(path + ".2")
		return err == nil
	})
	n.refused(n.kerb("flows", "-f", "--file", path), 1, "another process")
	_ = c.Process.Signal(os.Interrupt)
	if err := c.Wait(); err != nil || errs.Len() > 0 {
		n.T.Errorf("%v, %s", err, errs.String())
	}
	all, err := filepath.Glob(path + "*")
	if err != nil || len(all) != 3 {
		n.T.Errorf("%v, %v", all, err)
	}
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err != nil || len(text) > 4096 || len(text) > 0 && text[len(text)-1] != '\n' {
			n.T.Errorf("%s has %d bytes, %v", name, len(text), err)
		}
		flows, _ := n.readFlows(strings.NewReader(string(text)))
		for _, f := range flows {
			if f.Service != "web" {
				n.T.Errorf("%s: %+v", name, f)
			}
		}
	}
	n.refused(n.kerb("flows", "--file", path), 2, "--follow")
	n.refused(n.kerb("flows", "-f", "--file", path, "--max-size", "1Ki"), 2, "at least 4Ki")
}

// followMissing checks that a following client gets the missing counts of each service. They differ each second:
// TestMissingFlowsComeOnce checks that equal counts are sent once.
func (n *node) followMissing(services ...string) {
	n.T.Helper()
	var first *v1.Flow
	of := map[string]bool{}
	n.eachFlow(func(l v1.FlowLine) (done bool) {
		if l.Missing != nil {
			of[l.Missing.Service] = true
		} else if first == nil {
			first = l.Flow
		}
		return l.Flow != nil && l.Last.Sub(first.Last) > 3e9
	})
	for _, service := range services {
		if !of[service] {
			n.T.Errorf("nothing is missing of %s: %v", service, of)
		}
	}
}

// eachFlow calls take for each line until it returns true.
func (n *node) eachFlow(take func(v1.FlowLine) (done bool), flags ...string) {
	n.T.Helper()
	c := n.Command(n.T.Context(), append([]string{"flows", "--follow", "-o", "json"}, flags...)...)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		n.T.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	for lines := json.NewDecoder(out); ; {
		var l v1.FlowLine
		if err := lines.Decode(&l); err != nil || l.Error != "" {
			n.T.Fatalf("%v %s", err, l.Error)
		}
		if take(l) {
			return
		}
	}
}

// flood sends packets of many flows.
func (n *node) flood(from *netlab.Host, to netip.Addr) {
	n.T.Helper()
	err := from.Do(func() error {
		c, err := net.ListenPacket("udp4", ":0")
		if err != nil {
			return err
		}
		defer c.Close()
		for port := range 500 {
			at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, uint16(20000+port)))
			if _, err := c.WriteTo([]byte("flood"), at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		n.T.Fatal(err)
	}
}
