// SPDX-License-Identifier: Apache-2.0

package sdktest

import (
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// Layout checks that a Go structure has the same layout as a C structure of a data plane. It compares fields by
// position.
func Layout(t testing.TB, types *btf.Spec, name string, mirror any) {
	t.Helper()
	compare(t, types, name, reflect.TypeOf(mirror), compareFields)
}

// NamedLayout is like Layout, but compares fields by name, and ignores padding.
func NamedLayout(t testing.TB, types *btf.Spec, name string, mirror any) {
	t.Helper()
	compare(t, types, name, reflect.TypeOf(mirror), compareNames)
}

// compare checks the size of the structure in memory and as encoding/binary writes it: both must be the C structure's,
// or hidden padding would shift the fields.
func compare(t testing.TB, types *btf.Spec, name string, mirror reflect.Type,
	fields func(testing.TB, *btf.Struct, reflect.Type)) {
	t.Helper()
	var s *btf.Struct
	if err := types.TypeByName(name, &s); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if encoded := binary.Size(reflect.New(mirror).Interface()); int(s.Size) != int(mirror.Size()) ||
		int(s.Size) != encoded {
		t.Errorf("%s: %d bytes, %s has %d, and %d when it is encoded", s.Name, s.Size, mirror, mirror.Size(), encoded)
	} else if mirror.Kind() == reflect.Struct {
		fields(t, s, mirror)
	}
}

// compareFields compares by position, so that names may differ between C and Go.
func compareFields(t testing.TB, s *btf.Struct, mirror reflect.Type) {
	t.Helper()
	if len(s.Members) != mirror.NumField() {
		t.Errorf("%s: %d fields, %s has %d", s.Name, len(s.Members), mirror, mirror.NumField())
		return
	}
	for i, m := range s.Members {
		f := mirror.Field(i)
		if int(m.Offset.Bytes()) != int(f.Offset) {
			t.Errorf("%s: %s lies at %d, %s.%s at %d", s.Name, m.Name, m.Offset.Bytes(), mirror, f.Name, f.Offset)
		}
	}
}

// compareNames ignores case and underscores in names, and fields named _, which are padding.
func compareNames(t testing.TB, s *btf.Struct, mirror reflect.Type) {
	t.Helper()
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
