// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// TestScale applies KERB_SCALE virtual services of ten instances each, changes one of them, and connects to one of
// them. It logs the costs; the published figures are for KERB_SCALE=10000.
func TestScale(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("KERB_SCALE"))
	if err != nil {
		t.Skip("set KERB_SCALE to the number of virtual services")
	}
	n, client, servers := newMesh(t, "", map[string]any{"tables": map[string]any{
		"addresses": 32768, "ports": 65536, "instances": 110000, "slots": 524288}})
	begin := time.Now()
	const chunk = 250
	for from := 0; from < count; from += chunk {
		var all []any
		for i := from; i < min(from+chunk, count); i++ {
			all = append(all, virtualService(fmt.Sprintf("s%d", i), scaleSpec(i)))
		}
		n.Must(http.MethodPost, "/v1/apply", all, nil)
	}
	last := fmt.Sprintf("s%d", count-1)
	n.synced(last)
	t.Logf("%d virtual services with %d instances applied in %v", count, 10*count, time.Since(begin))
	tell := func(when string) {
		t.Logf("%s: the control plane has %d MiB of its own, the agent %d MiB", when, private(t, "control-host", n)>>20,
			private(t, "agent", n)>>20)
	}
	tell("after that")
	spec := scaleSpec(0)
	spec.Instances = []v1.VirtualInstance{instance(servers[0], true)}
	begin = time.Now()
	n.Must(http.MethodPut, "/v1/virtualservices/s0", virtualService("s0", spec), nil)
	n.synced("s0")
	t.Logf("one of them changed in %v", time.Since(begin))
	connect := func() {
		t.Helper()
		c, err := dialTCP(client, netip.MustParseAddrPort("10.30.0.0:80"))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	connect()
	n.Kill()
	begin = time.Now()
	n.Start()
	n.synced(last)
	t.Logf("all sent again after a restart in %v", time.Since(begin))
	tell("after that")
	connect()
}

func scaleSpec(i int) v1.VirtualServiceSpec {
	spec := v1.VirtualServiceSpec{Ports: bothPorts[:1], Addresses: []v1.VirtualAddress{
		{Address: fmt.Sprintf("10.30.%d.%d", i>>8, i&255)}, {Address: fmt.Sprintf("fdff:2000::%x", i+1)}}}
	for j := range 10 {
		at := 10*i + j
		spec.Instances = append(spec.Instances, v1.VirtualInstance{Name: fmt.Sprintf("i-%d", j),
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 100+at>>16, at>>8&255, at&255),
				fmt.Sprintf("fd00::%x:%x", at>>16, at&0xffff)}})
	}
	return spec
}

// private returns the private memory of a process of the node, in bytes.
func private(t *testing.T, command string, n *node) int64 {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		stat, _ := os.ReadFile("/proc/" + e.Name() + "/status")
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		words := strings.Split(string(line), "\x00")
		mine := e.Name() == strconv.Itoa(n.PID()) || strings.Contains(string(stat), fmt.Sprintf("PPid:\t%d\n", n.PID()))
		if !mine || len(words) < 2 || words[1] != command {
			continue
		}
		for _, field := range strings.Split(string(stat), "\n") {
			if rest, ok := strings.CutPrefix(field, "RssAnon:"); ok {
				kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return kib << 10
			}
		}
	}
	t.Errorf("no process %s", command)
	return 0
}
