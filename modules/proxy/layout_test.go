// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
)

// The Go structures that go into maps have the layout that the data plane was compiled with: fields are matched by name.
func TestDataPlaneLayouts(t *testing.T) {
	p := pkgstest.Package(t)
	spec, err := p.Spec(string(dataplane.TC))
	if err != nil {
		t.Fatal(err)
	}
	for name, mirror := range map[string]any{
		"px_vip": vip{}, "px_port": portKey{}, "px_range": addressRange{}, "px_ranges": addressRanges{},
		"px_place": place{}, "px_instance": instance{}, "px_instance_stats": instanceStats{}, "px_local": local{},
		"px_flow": flow{}, "px_session": session{}, "px_fragment": fragment{}, "px_fragment_of": fragmentOf{},
		"px_asked": asked{}, "px_unknown": unknown{},
	} {
		var s *btf.Struct
		if err := spec.Types.TypeByName(name, &s); err != nil {
			t.Error(err)
			continue
		}
		compareLayout(t, s, reflect.TypeOf(mirror))
	}
}

func compareLayout(t *testing.T, s *btf.Struct, mirror reflect.Type) {
	t.Helper()
	if int(s.Size) != int(mirror.Size()) {
		t.Errorf("%s: %d bytes, %s has %d", s.Name, s.Size, mirror, mirror.Size())
	}
	if mirror.Kind() != reflect.Struct {
		return
	}
	offsets := map[string]int{}
	for _, m := range s.Members {
		offsets[strings.ReplaceAll(m.Name, "_", "")] = int(m.Offset.Bytes())
	}
	for i := range mirror.NumField() {
		f := mirror.Field(i)
		if f.Name == "_" {
			continue
		}
		name := strings.ToLower(f.Name)
		if at, ok := offsets[name]; !ok || at != int(f.Offset) {
			t.Errorf("%s: %s lies at %d, %s.%s at %d (found %v)", s.Name, name, at, mirror, f.Name, f.Offset, ok)
		}
	}
}
