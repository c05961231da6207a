// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A container that a hook has reported is removed when its process has ended, even if another process has its PID.
func TestReusedPID(t *testing.T) {
	own := startTimeOf(os.Getpid())
	if own == "" || own == startTimeOf(1) {
		t.Fatalf("this process began at %q, and process 1 at %q", own, startTimeOf(1))
	}
	with := func(pid int, began string) container {
		c := container{startTime: began}
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

// After an event of a container, such as an old one that the runtime reports after a restart of the agent, the list of
// running containers is incomplete until the next list: a hook that reports another container in the meantime deletes
// no services.
func TestForgottenContainersKeepTheirServices(t *testing.T) {
	f := &follower{known: map[string]container{"a": {ID: "a"}, "b": {ID: "b"}}, synced: true}
	f.forget("a")
	if all, complete := f.all(); complete {
		t.Errorf("%d of two containers are all", len(all))
	}
}

// The next list deletes remaining services, also those that a hook has applied in the meantime.
func TestServicesAreDeletedOnceAllAreKnown(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kerb.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var prunes []string
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			prunes = append(prunes, r.FormValue("prune"))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "[]")
	})}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(l) }()
	f := newFollower(Options{Agent: socket, Runtime: "docker"}, slog.New(slog.DiscardHandler), func(string, string) {})
	for _, f.synced = range []bool{false, true, true} {
		if _, err := f.converge(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"false", "true"}; !slices.Equal(prunes, want) {
		t.Errorf("applied with prune %q, want %q", prunes, want)
	}
}
