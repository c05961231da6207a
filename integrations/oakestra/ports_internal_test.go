// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParsePorts(t *testing.T) {
	for text, want := range map[string][]port{
		"":                     nil,
		" ; ":                  nil,
		"80":                   {{"tcp", 80, 80}},
		"80/udp":               {{"udp", 80, 80}},
		"80:8080":              {{"tcp", 80, 8080}},
		"80:8080/tcp;53/udp;":  {{"tcp", 80, 8080}, {"udp", 53, 53}},
		"80 : 81/tcp; 80/udp":  {{"tcp", 80, 81}, {"udp", 80, 80}},
		"80:81;80:81/tcp":      {{"tcp", 80, 81}},
		"65535:1/udp;1:65535":  {{"udp", 65535, 1}, {"tcp", 1, 65535}},
		"65536":                nil,
		"0":                    nil,
		"-1":                   nil,
		"80:":                  nil,
		":80":                  nil,
		"80:81:82":             nil,
		"80/":                  nil,
		"80/tcp/udp":           nil,
		"80/TCP":               nil,
		"10.0.0.1:80:80":       nil,
		"80:81;80:82":          nil,
		"80,81":                nil,
		strings.Repeat("x", 9): nil,
	} {
		got, err := parsePorts(text)
		if !cmp.Equal(got, want) || (err != nil) != (want == nil && strings.Trim(text, " ;") != "") {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	var many strings.Builder
	for i := range maxPorts + 1 {
		fmt.Fprintf(&many, "%d;", i+1)
	}
	if _, err := parsePorts(many.String()); err == nil {
		t.Errorf("%d ports are taken", maxPorts+1)
	}
}

// Errors of a kernel without nf_tables name the missing option, and other errors do not.
func TestLacksNAT(t *testing.T) {
	for err, says := range map[error]bool{
		os.NewSyscallError("socket", unix.EPROTONOSUPPORT):            true,
		fmt.Errorf("conn.Receive: %w", errors.Join(unix.EOPNOTSUPP)):  true,
		fmt.Errorf("conn.Receive: %w", errors.Join(unix.ENOENT, nil)): true,
		unix.EPERM: false,
	} {
		got := explainNATError(err)
		if !errors.Is(got, err) || strings.Contains(got.Error(), "nf_tables in the kernel") != says {
			t.Errorf("%v: %v", err, got)
		}
	}
	if err := explainNATError(nil); err != nil {
		t.Error(err)
	}
}
