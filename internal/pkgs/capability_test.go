// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"slices"
	"testing"
)

// A package that was published before there were capabilities has those that its fields name, and the digest that
// it had: nodes deny packages by it.
func TestOlderManifests(t *testing.T) {
	const older = "resources: [virtualServices, models]\ninject: true\nsocket: true\ncontrol: builtin\n"
	const sockets = "name: sample\nversion: 1.2.3\nlicense: GPL-2.0-only\ncontract: 1\nhooks: [sockets]\n"
	for _, c := range []struct {
		manifest string
		want     []string
		digest   string
	}{
		{goodManifest, nil,
			"sha256:6f0c07a41a3b1f4513bf52c4bffef09f87cd74eae6c0f862bfe8466d60e9b355"},
		{goodManifest + "rank: 0\n", nil,
			"sha256:6f0c07a41a3b1f4513bf52c4bffef09f87cd74eae6c0f862bfe8466d60e9b355"},
		{goodManifest + older, []string{"virtualServices", "models", "inject", "clients"},
			"sha256:3c5c9e431d63c5be1ab4e012513c8e3738d591e3c6f60d5be2c8223462b0959f"},
		{sockets + "control: builtin\n", []string{"kernelFacts"},
			"sha256:81b0f83075122a55dc7e9e5869794d4aa0faecf7ec35b9f855daf515013d05d8"},
	} {
		m, err := ParseManifest("kerb.yaml", []byte(c.manifest))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.GrantedCapabilities(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.manifest, got, c.want)
		}
		objects := map[string][]byte{"xdp": []byte("x"), "tc": []byte("t"), "sockets": []byte("s")}
		if got := newPackage(m, "sample", objects, nil).Digest; got != c.digest {
			t.Errorf("%s: digest %s, want %s", c.manifest, got, c.digest)
		}
	}
	m, err := ParseManifest("kerb.yaml", []byte(sockets+"capabilities: []\ncontrol: builtin\n"))
	if err != nil || len(m.GrantedCapabilities()) > 0 {
		t.Errorf("a manifest that names none has %v, %v", m, err)
	}
}
