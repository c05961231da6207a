// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// A service's cookie is what its own sockets have, however the service is named.
func TestCookies(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.New("ksc")
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	var cookies Cookies
	seen := map[uint64]bool{}
	for _, name := range []string{"a", "b"} {
		h, err := lab.Host(name, netlab.HostOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var want uint64
		if err := h.Do(func() (err error) { want, err = cookieHere(); return err }); err != nil {
			t.Fatal(err)
		}
		for _, spec := range []v1alpha1.ServiceSpec{{Netns: h.Path()}, {Interface: h.Outer()}} {
			state, err := resolveOne(spec)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time it is remembered
				if got, err := cookies.Get(spec, state.Links); err != nil || got != want || got == 0 {
					t.Errorf("%+v: %d, %v, want %d", spec, got, err, want)
				}
			}
		}
		seen[want] = true
	}
	if len(seen) != 2 {
		t.Error("two services have one cookie")
	}
	if _, err := cookies.Get(v1alpha1.ServiceSpec{Netns: "/nowhere"}, nil); err == nil {
		t.Error("a namespace that is not there has a cookie")
	}
}
