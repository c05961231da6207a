// SPDX-License-Identifier: Apache-2.0

package kerbabi_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bpf/bpftest"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

func types(t *testing.T) *btf.Spec {
	return bpftest.Compile(t, "testdata/abi.bpf.c", bpftest.XDP).Types
}

// enumerators of a type, by name without the prefix, in lower case.
func enumerators(t *testing.T, spec *btf.Spec, typeName, prefix string) map[string]uint64 {
	t.Helper()
	var enum *btf.Enum
	if err := spec.TypeByName(typeName, &enum); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]uint64)
	for _, v := range enum.Values {
		found[strings.ToLower(strings.TrimPrefix(v.Name, prefix))] = v.Value
	}
	return found
}

func byNumber(names []string) map[string]uint64 {
	numbers := make(map[string]uint64)
	for i, name := range names {
		numbers[name] = uint64(i)
	}
	return numbers
}

func TestNamesMatchTheHeaders(t *testing.T) {
	spec := types(t)
	outcomes := byNumber(kerbabi.ParseOutcomes)
	outcomes["outcomes"] = uint64(len(kerbabi.ParseOutcomes))
	reasons := byNumber(kerbabi.DropReasons)
	reasons["module_first"] = uint64(kerbabi.DropModuleFirst)
	reasons["reasons"] = kerbabi.DropReasonCount
	for _, c := range []struct {
		enum, prefix string
		want         map[string]uint64
	}{
		{"kerb_verdict", "KERB_", byNumber(kerbabi.Verdicts)},
		{"kerb_parse", "KERB_PARSE_", outcomes},
		{"kerb_drop_reason", "KERB_DROP_", reasons},
		{"kerb_event_count", "KERB_EVENT", map[string]uint64{"s_sent": uint64(kerbabi.EventsSent),
			"s_lost":       uint64(kerbabi.EventsLost),
			"s_lost_bytes": uint64(kerbabi.EventsLostBytes), "_counts": uint64(kerbabi.EventCounts)}},
	} {
		if diff := cmp.Diff(c.want, enumerators(t, spec, c.enum, c.prefix)); diff != "" {
			t.Errorf("%s: Go - C +\n%s", c.enum, diff)
		}
	}
}

// The API has the names of the verdicts in tags, which no table can fill.
func TestVerdictsOfTheAPI(t *testing.T) {
	names := strings.Join(kerbabi.Verdicts, ",")
	for of, want := range map[reflect.Type]string{
		reflect.TypeFor[v1alpha1.VerdictCount]():    names,
		reflect.TypeFor[v1alpha1.TraceRequest]():    names + ",",
		reflect.TypeFor[v1alpha1.ExplainedPacket](): strings.Replace(names, kerbabi.Next.String(), "pass", 1),
	} {
		field, _ := of.FieldByName("Verdict")
		if got := field.Tag.Get("enum"); got != want {
			t.Errorf("%s: %q, want %q", of, got, want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	for v := range kerbabi.VerdictCount {
		if got, ok := kerbabi.VerdictNamed(v.String()); !ok || got != v || !v.Valid() || v.Past() == "" {
			t.Errorf("%d: %s, %q", v, v, v.Past())
		}
	}
	if v := kerbabi.VerdictCount; v.Valid() || v.Ends() || v.String() != "invalid" {
		t.Error("there is a verdict without a number")
	}
	if _, ok := kerbabi.VerdictNamed("invalid"); ok {
		t.Error("invalid is a verdict")
	}
}

// The constants of Go have names of their own; these are their numbers.
func TestConstantsMatchTheNames(t *testing.T) {
	for want, got := range map[string]string{
		"redirect":    kerbabi.Verdicts[kerbabi.Redirect],
		"not_ip":      kerbabi.ParseNotIP.String(),
		"short_l2":    kerbabi.ParseShortL2.String(),
		"vlan_depth":  kerbabi.ParseVLANDepth.String(),
		"short_l3":    kerbabi.ParseShortL3.String(),
		"bad_version": kerbabi.ParseBadVersion.String(),
		"bad_ihl":     kerbabi.ParseBadIHL.String(),
		"bad_length":  kerbabi.ParseBadLength.String(),
		"ext_depth":   kerbabi.ParseExtDepth.String(),
		"short_l4":    kerbabi.ParseShortL4.String(),
		"bad_l4":      kerbabi.ParseBadL4.String(),
		"11":          kerbabi.ParseOutcome(11).String(),
		"policy":      kerbabi.DropPolicy.String(),
		"malformed":   kerbabi.DropMalformed.String(),
		"fragment":    kerbabi.DropFragment.String(),
		"extension":   kerbabi.DropExtension.String(),
		"state":       kerbabi.DropState.String(),
		"table_full":  kerbabi.DropTableFull.String(),
		"rate":        kerbabi.DropRate.String(),
		"no_route":    kerbabi.DropNoRoute.String(),
		"too_big":     kerbabi.DropTooBig.String(),
		"no_memory":   kerbabi.DropNoMemory.String(),
		"bad_verdict": kerbabi.DropBadVerdict.String(),
		"unavailable": kerbabi.DropUnavailable.String(),
		"13":          kerbabi.DropReasonName(13),
		"module_0":    kerbabi.DropReasonName(32),
		"module_31":   kerbabi.DropReasonName(63),
		"64":          kerbabi.DropReasonName(64),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestMacrosMatchTheHeaders(t *testing.T) {
	want := map[string]uint64{
		"flag_frag_first": kerbabi.FlagFragFirst,
		"flag_frag_later": kerbabi.FlagFragLater,
		"flag_options":    kerbabi.FlagOptions,
		"flag_ext":        kerbabi.FlagExt,
		"flag_l4":         kerbabi.FlagL4,
		"to_deferred":     kerbabi.ToDeferred,
		"max_ext":         kerbabi.MaxExt,
		"max_hdrs":        kerbabi.MaxHdrs,
		"vlan_depth":      kerbabi.VLANDepth,
	}
	if diff := cmp.Diff(want, enumerators(t, types(t), "macros", "")); diff != "" {
		t.Errorf("Go - C +\n%s", diff)
	}
}

type member struct {
	Name         string
	Offset, Size uint32
}

func TestPacketLayout(t *testing.T) {
	var c *btf.Struct
	if err := types(t).TypeByName("kerb_pkt", &c); err != nil {
		t.Fatal(err)
	}
	goType := reflect.TypeFor[kerbabi.Packet]()
	if uint32(goType.Size()) != c.Size || goType.NumField() != len(c.Members) {
		t.Fatalf("Go has %d bytes in %d fields, C %d in %d", goType.Size(), goType.NumField(), c.Size, len(c.Members))
	}
	for i, m := range c.Members {
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			t.Fatal(err)
		}
		f := goType.Field(i)
		want := member{strings.ReplaceAll(m.Name, "_", ""), m.Offset.Bytes(), uint32(size)}
		if got := (member{strings.ToLower(f.Name), uint32(f.Offset), uint32(f.Type.Size())}); got != want {
			t.Errorf("Go has %v, C %v", got, want)
		}
	}
}
