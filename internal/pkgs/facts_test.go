// SPDX-License-Identifier: Apache-2.0

package pkgs

import "testing"

func builtPackage(t *testing.T) *Package {
	t.Helper()
	dir := scaffold(t)
	build(t, dir)
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A change neither reads objects nor compiles the schema of a package again, however long ago the last change was.
func TestFactsAreReadOnce(t *testing.T) {
	p := builtPackage(t)
	reads := 0
	object := p.objects[HookTC]
	p.objects[HookTC] = func() []byte { reads++; return object() }
	schema, err := p.config.Get()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if p.Memory(nil) == 0 {
			t.Error("the maps take no memory")
		}
		if p.Memory(map[string]uint32{"packets": 1 << 20}) <= p.Memory(nil) {
			t.Error("a larger map takes no more memory")
		}
		if has, err := p.HasEntry(HookTC, EntryEgress); err != nil || !has {
			t.Errorf("entry: %t, %v", has, err)
		}
		if has, err := p.HasEntry(HookTC, "other"); err != nil || has {
			t.Errorf("an entry that is not there: %t, %v", has, err)
		}
		if m := p.Tunables(); m != nil {
			t.Errorf("tunables %v", m)
		}
		if again, err := p.config.Get(); err != nil || again != schema {
			t.Errorf("another schema, %v", err)
		}
		p.parsed[HookTC].Drop()
	}
	if reads != 1 {
		t.Errorf("the object was read %d times", reads)
	}
}

// An unusable object causes an error for its hook each time.
func TestFactsOfBadObject(t *testing.T) {
	p := builtPackage(t)
	p.objects[HookTC] = func() []byte { return []byte("no object") }
	for range 2 {
		if _, err := p.HasEntry(HookTC, EntryEgress); err == nil {
			t.Error("no error")
		}
	}
}
