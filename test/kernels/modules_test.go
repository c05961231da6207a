// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func graph(deps map[string][]string) func(string) ([]string, bool, error) {
	return func(name string) ([]string, bool, error) {
		d, ok := deps[name]
		return d, ok, nil
	}
}

func TestModuleOrder(t *testing.T) {
	deps := graph(map[string][]string{
		"vxlan":      {"udp_tunnel", "ip6-udp-tunnel"},
		"udp_tunnel": nil, "ip6_udp_tunnel": {"udp_tunnel"},
		"br_netfilter": {"bridge"}, "bridge": {"stp", "llc"}, "stp": {"llc"}, "llc": nil,
	})
	got, err := moduleOrder([]string{"br-netfilter", "builtin", "vxlan", "bridge"}, deps)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"llc", "stp", "bridge", "br_netfilter", "udp_tunnel", "ip6_udp_tunnel", "vxlan"}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func TestModuleOrderCycle(t *testing.T) {
	_, err := moduleOrder([]string{"a"}, graph(map[string][]string{"a": {"b"}, "b": {"a"}}))
	if !errors.Is(err, errModuleCycle) {
		t.Fatalf("got %v, want %v", err, errModuleCycle)
	}
}

func TestModuleOrderError(t *testing.T) {
	broken := errors.New("broken")
	_, err := moduleOrder([]string{"a"}, func(string) ([]string, bool, error) { return nil, false, broken })
	if !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
}

func TestParseModinfo(t *testing.T) {
	got := parseModinfo("license=GPL\x00alias=depends\x00depends=stp,llc\x00name=bridge\x00")
	if d := cmp.Diff([]string{"stp", "llc"}, got); d != "" {
		t.Fatal(d)
	}
	if got := parseModinfo("license=GPL\x00depends=\x00"); len(got) != 0 {
		t.Fatalf("got %q, want nothing", got)
	}
}
