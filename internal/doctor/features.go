// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/dataplane/probe"
)

// meaning is what it means to Kerb when a feature is missing.
type meaning struct {
	status Status // OK: nothing in Kerb wants it
	lost   string // what is lost without it
	since  string // kernel that brought it
}

// meanings of the probe's features. One that is not here is only shown.
var meanings = map[string]meaning{
	"bpf-syscall":    {Fail, "nothing works without BPF", "4.4 with CONFIG_BPF_SYSCALL"},
	"xdp-program":    {Fail, "no chains on network cards", "4.8"},
	"tc-program":     {Fail, "no chains on services", "4.1 with CONFIG_NET_CLS_BPF"},
	"mcpu-v3":        {Fail, "the data planes are compiled for it", "5.1"},
	"mcpu-v4":        {OK, "packages compiled for it are refused; the built-in ones are not", "6.6"},
	"large-programs": {Fail, "chains need more than 4,096 instructions", "5.2"},
	"test-run-xdp":   {Warn, "packages cannot be tested on this node", "4.12"},
	"test-run-tc":    {Warn, "packages cannot be tested on this node", "4.12"},
	"ringbuf":        {Warn, "modules cannot report events", "5.8"},
	"user-ringbuf":   {OK, "no built-in module needs it", "6.1"},
	"lru-hash":       {Fail, "the firewall cannot track connections", "4.10"},
	"lpm-trie":       {Fail, "modules cannot match prefixes", "4.11"},
	"map-in-map":     {Fail, "rule sets cannot be replaced as one", "4.12"},
	"batch-ops":      {Warn, "maps are filled one entry at a time: large rule sets load slowly", "5.6"},
	"bpf-loop":       {OK, "packages that use it are refused; the built-in ones do without", "5.17"},
	"bpf-timer":      {OK, "packages that use it are refused; the built-in ones do without", "5.15"},
	"xdp-load-bytes": {OK, "chains cannot read beyond the first buffer of a packet in fragments", "5.18"},
	"redirect-peer":  {OK, "no shortcut between services", "5.10"},
	"fentry":         {OK, "tracing tools need it, Kerb does not", "5.5"},
	"freplace":       {OK, "other loaders need it, Kerb does not", "5.6"},
	"tcx":            {OK, "Kerb uses clsact instead", "6.6"},
	"clsact":         {OK, "Kerb uses TCX instead", "4.5 with CONFIG_NET_SCH_INGRESS"},
	"xdp-native":     {Warn, "XDP on veths runs in generic mode, which is slower", "4.19"},
	"xdp-frags":      {OK, "native XDP on veths only up to an MTU of about a page", "5.18"},
	"xdp-generic":    {Warn, "no XDP on interfaces whose driver does not support it", "4.12"},
}

// features tries what the kernel can do.
func features(Options) []Check {
	var checks []Check
	results := make(map[string]error)
	for _, f := range probe.Features() {
		results[f.Name] = f.Try()
		checks = append(checks, judge(f.Name, results[f.Name]))
	}
	if missing(results["tcx"]) && missing(results["clsact"]) {
		checks = append(checks, bad(Fail, "tc-attach", newer("6.6"), "neither TCX nor clsact: chains cannot be put "+
			"on services"))
	}
	return append(checks, nativeMTU(results["xdp-native"])...)
}

// missing reports that the kernel has been asked, and does not have it.
func missing(err error) bool {
	return err != nil && !errors.Is(err, probe.ErrNoNamespace) && !errors.Is(err, unix.EPERM)
}

// judge turns a probe's answer into a finding.
func judge(name string, err error) Check {
	name = "feature " + name
	m, known := meanings[name[len("feature "):]]
	switch {
	case err == nil:
		return ok(name, "works")
	case errors.Is(err, probe.ErrNoNamespace):
		return bad(Warn, name, "sudo kerb doctor", "not tried: %v", err)
	case !known || m.status == OK:
		return ok(name, "no (%s); %s", probe.Reason(err), m.lost)
	case errors.Is(err, unix.EPERM):
		return bad(m.status, name, "sudo kerb doctor", "no (%s); %s", probe.Reason(err), m.lost)
	}
	return bad(m.status, name, newer(m.since), "no (%s); %s", probe.Reason(err), m.lost)
}

func newer(version string) string {
	return fmt.Sprintf("boot Linux %s or newer; on Debian: apt install linux-image-$(dpkg --print-architecture)", version)
}

// nativeMTU reports how large packets may be with XDP in the driver of a veth.
func nativeMTU(native error) []Check {
	if native != nil {
		return nil
	}
	mtu, err := probe.NativeMTU()
	if err != nil {
		return []Check{bad(Warn, "veth XDP MTU", "sudo kerb doctor", "unknown: %v", err)}
	}
	return []Check{ok("veth XDP MTU", "native XDP without frags up to an MTU of %d", mtu)}
}
