// SPDX-License-Identifier: Apache-2.0

package sockprobe

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The checks themselves are right: sockets that no program of BPF sees pass all of them.
func TestPlainTCPPassesAllChecks(t *testing.T) {
	for _, c := range slices.Concat(checks, unchanged) {
		t.Run(c.name, func(t *testing.T) {
			err := error(unix.EAGAIN)
			for tries := 0; errors.Is(err, unix.EAGAIN) && tries < mostTries; tries++ { // as Test does
				err = c.run(connected(t))
			}
			if err != nil && c.name != "ktlsRefused" { // which plain TCP does not
				t.Error(err)
			}
		})
	}
}

// A recv(2) with a limit to its time ends with EINTR when a signal comes, and the Go runtime sends such.
func TestChecksAreNotPreempted(t *testing.T) {
	runtime.LockOSThread() // whose mask of signals is read afterwards
	defer runtime.UnlockOSThread()
	preempted := func(p *pair) error {
		thread := unix.Gettid()
		time.AfterFunc(5*time.Millisecond, func() { _ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) })
		return closeWhileReceiving(p)
	}
	err := error(unix.EAGAIN)
	for tries := 0; errors.Is(err, unix.EAGAIN) && tries < mostTries; tries++ {
		err = (&check{try: preempted}).run(connected(t))
	}
	if err != nil {
		t.Error(err)
	}
	var mask unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, nil, &mask); err != nil || mask.Val[0]&(1<<(unix.SIGURG-1)) != 0 {
		t.Errorf("afterwards the mask of signals is %x, %v", mask.Val[0], err)
	}
}

func connected(t *testing.T) *pair {
	t.Helper()
	p, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

func TestThisKernel(t *testing.T) {
	sdktest.NeedRoot(t)
	before := descriptors(t)
	result, err := Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	good := result.ByName()
	if len(good) != len(checks) {
		t.Errorf("%d results with different names of %d checks", len(good), len(checks))
	}
	if !good[Integrity] {
		t.Errorf("%s is not as it is with TCP", Integrity)
	}
	for _, c := range result.Checks {
		if !c.OK && c.Detail == "" {
			t.Errorf("%s: nothing says why", c.Name)
		}
		t.Log(c.Name, c.OK, c.Detail)
	}
	if len(result.RoundTrips) != len(roundTripSizes) {
		t.Errorf("%d sizes were measured of %d", len(result.RoundTrips), len(roundTripSizes))
	}
	for _, turn := range result.RoundTrips {
		if turn.Plain <= 0 || turn.Redirected <= 0 {
			t.Errorf("%+v", turn)
		}
		t.Logf("%+v", turn)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
}

// The caller's thread stays where it is.
func TestNamespaceIsLeftAlone(t *testing.T) {
	sdktest.NeedRoot(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Readlink("/proc/thread-self/ns/net"); after != before {
		t.Errorf("in %s, before in %s", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
