// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// An interface without the qdisc, or that has gone, has no filter. That the kernel could not be asked is an error: or
// else the chain that is there would be forgotten.
func TestListClsactErrors(t *testing.T) {
	d := &Dataplane{}
	for what, ifindex := range map[string]int{"no qdisc": 1, "no interface": 1<<31 - 1} {
		if f, err := d.listClsact(chain.Point{Ifindex: ifindex, Side: chain.OnTCIngress}); f != nil || err != nil {
			t.Errorf("%s: %v, %v", what, f, err)
		}
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := d.listClsact(chain.Point{Ifindex: 1, Side: chain.OnTCIngress})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("without a descriptor for a socket: %v", err)
	}
}
