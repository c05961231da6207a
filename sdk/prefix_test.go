// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"net/netip"
	"testing"
)

func TestParsePrefix(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "192.0.2.1/24": "192.0.2.1/24", "2001:db8::1": "2001:db8::1/128", "::/0": "::/0",
		"::ffff:192.0.2.1": "::ffff:192.0.2.1/128",
	} {
		if p, err := ParsePrefix(text); err != nil || p.String() != want {
			t.Errorf("%s: %v, %v", text, p, err)
		}
	}
	for _, text := range []string{"", "192.0.2", "192.0.2.1/33", "fe80::1%eth0", "fe80::1%eth0/64", "/24", "web"} {
		if p, err := ParsePrefix(text); err == nil {
			t.Errorf("%q is accepted as %v", text, p)
		}
	}
}

func TestMappedPrefix(t *testing.T) {
	for _, c := range []struct {
		prefix, want string
		mask         [16]byte
	}{
		{"192.0.2.0/24", "::ffff:192.0.2.0/120",
			[16]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}},
		{"0.0.0.0/0", "::ffff:0.0.0.0/96", [16]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}},
		{"2001:db8::/29", "2001:db8::/29", [16]byte{255, 255, 255, 0xf8}},
		{"::/0", "::/0", [16]byte{}},
	} {
		p := MappedPrefix(netip.MustParsePrefix(c.prefix))
		if p.String() != c.want || PrefixMask(p.Bits()) != c.mask {
			t.Errorf("%s: %v, mask %v", c.prefix, p, PrefixMask(p.Bits()))
		}
	}
}

func TestPrintable(t *testing.T) {
	if got := Printable([]byte("a\x1b[1m\xffb\x00secret")); got != "a?[1m?b" {
		t.Errorf("%q", got)
	}
}
