// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const aptShow = `Package: linux-image-cloud-amd64
Version: 7.2.12-1~bpo13+1
Depends: linux-base-cloud-amd64 (= 7.2.12-1~bpo13+1), linux-image-7.2.12+deb13-cloud-amd64 (= 7.2.12-1~bpo13+1)
Description: Linux for x86-64 cloud
 a continued line

Package: linux-image-cloud-amd64
Version: 6.1.176-1
Depends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.176-1)

Package: linux-image-cloud-amd64
Version: 6.1.192-2
Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)

Package: linux-image-6.12-cloud-amd64
Version: 6.12.117-1~deb12u1
Depends: linux-image-6.12.117+deb12-cloud-amd64 (= 6.12.117-1~deb12u1)
`

func TestParseStanzas(t *testing.T) {
	got := parseStanzas("# a remark\nA: 1\nB: 2:3\n more\n\n\nA: 4\n")
	want := []stanza{{"A": "1", "B": "2:3\nmore"}, {"A": "4"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func TestMirrors(t *testing.T) {
	sources := "Types: deb\nEnabled: no\nURIs: http://off.example/debian\n\nTypes: deb\nURIs: " +
		"http://a.example/x/debian/\nSuites: bookworm\n" +
		"\nURIs: http://a.example/debian-security\n"
	lines := "deb [signed-by=/k.gpg] http://b.example/debian stable main\n#deb http://c.example/debian stable main\n" +
		"deb http://b.example/debian-security stable main\n"
	files := "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\n\nURIs: " +
		"mirror+file:///etc/apt/mirrors/debian-security.list\n"
	for text, want := range map[string]mirrors{
		sources: {"http://a.example/x/debian/", "http://a.example/debian-security"},
		lines:   {"http://b.example/debian", "http://b.example/debian-security"},
		files:   {"mirror+file:///etc/apt/mirrors/debian.list", "mirror+file:///etc/apt/mirrors/debian-security.list"},
		"":      {},
	} {
		var got mirrors
		got.fill(text)
		if got != want {
			t.Errorf("got %+v, want %+v from\n%s", got, want, text)
		}
	}
}

func TestNewestOf(t *testing.T) {
	for name, version := range map[string]string{
		"newest": "7.2.12-1~bpo13+1",
		"6.1":    "6.1.192-2", // not 6.12, and not 6.1.176
		"6.12":   "6.12.117-1~deb12u1",
		"5.10":   "",
	} {
		specs, err := parseSpecs([]string{name}, amd64(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := specs[0].newestOf(parseStanzas(aptShow))["Version"]; got != version {
			t.Errorf("%s: got %q, want %q", name, got, version)
		}
	}
}

func TestKernelParts(t *testing.T) {
	st := stanza{"Depends": "dracut | initramfs-tools (>= 0.1), linux-base-7.2+x (= 7.2-1), linux-binary-7.2+x (= " +
		"7.2-1), linux-modules-7.2+x (= 7.2-1)"}
	want := []pkgVersion{{"linux-binary-7.2+x", "7.2-1"}, {"linux-modules-7.2+x", "7.2-1"}}
	if d := cmp.Diff(want, kernelParts(st), cmp.AllowUnexported(pkgVersion{})); d != "" {
		t.Fatal(d)
	}
}

func TestConcreteImages(t *testing.T) {
	specs, err := parseSpecs([]string{"6.18", "6.18-generic", "newest"}, amd64(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][3]bool{
		"linux-image-6.18.15+deb13-cloud-amd64":          {true, false, false},
		"linux-image-6.18.15+deb13-amd64":                {false, true, false},
		"linux-image-6.18.15+deb13-rt-amd64":             {},
		"linux-image-6.18.15+deb13-cloud-amd64-dbg":      {},
		"linux-image-6.18.15+deb13-cloud-amd64-unsigned": {},
		"linux-image-6.18-cloud-amd64":                   {},
		"linux-image-6.1.0-56-cloud-amd64":               {},
	} {
		for i, s := range specs {
			if s.concrete(name) != want[i] {
				t.Errorf("%s is an image of %s: %v, want %v", name, s.name, !want[i], want[i])
			}
		}
	}
}

func TestParseSpecsRefuses(t *testing.T) {
	for _, bad := range [][]string{nil, {"6"}, {"6.1-fast"}, {"6.1.3"}, {"6.1", "-rt"}, {"6.12-16k"}} {
		if specs, err := parseSpecs(bad, amd64(t)); err == nil {
			t.Errorf("%q is accepted as %v", bad, specs)
		}
	}
}

func amd64(t *testing.T) arch {
	t.Helper()
	a, err := findArch("amd64")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestFlavours(t *testing.T) {
	arm64, err := findArch("arm64")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]string{
		"6.12":         {"cloud-amd64", "cloud-arm64"},
		"6.12-rt":      {"rt-amd64", "rt-arm64"},
		"6.12-generic": {"amd64", "arm64"},
		"6.12-16k":     {"", "arm64-16k"},
	} {
		for i, a := range []arch{amd64(t), arm64} {
			specs, err := parseSpecs([]string{name}, a)
			if (err != nil) != (want[i] == "") || err == nil && specs[0].flavour != want[i] {
				t.Errorf("%s on %s: %v, %v, want %q", name, a.name, specs, err, want[i])
			}
		}
	}
	if _, err := findArch("riscv64"); err == nil {
		t.Error("an unknown architecture is accepted")
	}
}
