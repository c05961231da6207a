// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"maps"
	"os"
	"slices"
	"testing"
)

// A container that a hook has reported is forgotten when its process has ended, even if another one has its PID.
func TestReusedPID(t *testing.T) {
	own := startTimeOf(os.Getpid())
	if own == "" || own == startTimeOf(1) {
		t.Fatalf("this process began at %q, and process 1 at %q", own, startTimeOf(1))
	}
	with := func(pid int, began string) container {
		c := container{began: began}
		c.State.Pid = pid
		return c
	}
	f := &follower{hooked: map[string]container{"runs": with(os.Getpid(), own), "unknown": with(os.Getpid(), ""),
		"reused": with(os.Getpid(), startTimeOf(1)), "ended": with(1<<22+1, "5")}}
	f.dropHooked()
	if got := slices.Sorted(maps.Keys(f.hooked)); !slices.Equal(got, []string{"runs", "unknown"}) {
		t.Errorf("left: %v", got)
	}
}
