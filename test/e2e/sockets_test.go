// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// newSocketsNode returns a node whose agent attaches to sockets in a cgroup of this test, which also contains the
// test's process.
func newSocketsNode(t *testing.T) *node {
	t.Helper()
	dir := cgrouptest.New(t, "", "kerb-e2e")
	n := newNode(t)
	n.cgroup = dir
	cgrouptest.Enter(t, dir)
	n.start()
	n.apply(n.both())
	return n
}

// accelerator redirects all sockets between web and db. It allows this program, which the module would exclude because
// of its calls on sockets.
func accelerator(selector string) v1.Module {
	self := filepath.Base(os.Args[0])
	return module("accel", "accelerator", selector,
		map[string]any{"mode": "redirect-all", "programs": map[string]any{"allow": []any{self}}})
}

// redirected returns the number of redirected bytes.
func (n *node) redirected() (sum uint64) {
	n.T.Helper()
	var pairs []struct{ Bytes uint64 }
	if r := n.kerb("module", "query", "accel", "pairs", "-j"); r.code != 0 ||
		json.Unmarshal([]byte(r.stdout), &pairs) != nil {
		return 0
	}
	for _, p := range pairs {
		sum += p.Bytes
	}
	return sum
}

// talks are conversations between two hosts, in which every byte is checked, until they are stopped.
type talks struct {
	t     *testing.T
	end   sync.Once
	ended chan struct{}
	all   sync.WaitGroup
	bytes uint64 // set by finish
	mu    sync.Mutex
}

func startTalks(t *testing.T, from, to *netlab.Host, count int) *talks {
	t.Helper()
	s := &talks{t: t, ended: make(chan struct{})}
	var l net.Listener
	err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(to.Addr4().String(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Cleanup(s.stop) // also after the test has failed in between
	for seed := range count {
		var c, server net.Conn
		err := from.Do(func() (err error) {
			c, err = net.Dial("tcp", l.Addr().String())
			return err
		})
		if err == nil {
			server, err = l.Accept()
		}
		if err != nil {
			t.Fatal(err)
		}
		s.all.Go(func() { s.answer(server) })
		s.all.Go(func() { s.talk(c, uint64(seed)) })
	}
	return s
}

// patience is the timeout of a message, after which the conversation counts as hung.
const patience = nodetest.Patience

// answer echoes all data.
func (s *talks) answer(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := c.Read(buf)
		if err == io.EOF {
			return
		}
		if err == nil {
			_, err = c.Write(buf[:n])
		}
		if err != nil {
			s.t.Errorf("server: %v", err)
			return
		}
	}
}

func (s *talks) talk(c net.Conn, seed uint64) {
	defer c.Close()
	random, chunk, sum := rand.New(rand.NewPCG(seed, 1)), make([]byte, 1<<15), uint64(0)
	bytesOf := rand.NewChaCha8([32]byte{byte(seed)})
	for {
		select {
		case <-s.ended:
			s.mu.Lock()
			s.bytes += sum
			s.mu.Unlock()
			return
		case <-time.After(time.Millisecond):
		}
		out := chunk[:1+random.IntN(len(chunk))]
		_, _ = bytesOf.Read(out)
		back := make([]byte, len(out))
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write(out); err != nil {
			s.t.Errorf("after %d bytes: %v", sum, err)
			return
		}
		if _, err := io.ReadFull(c, back); err != nil || !bytes.Equal(back, out) {
			s.t.Errorf("after %d bytes: %v, or other bytes than were sent", sum, err)
			return
		}
		sum += uint64(len(out))
	}
}

// finish returns the bytes that were sent and returned.
func (s *talks) finish() uint64 {
	s.t.Helper()
	s.stop()
	return s.bytes
}

func (s *talks) stop() {
	s.end.Do(func() { close(s.ended) })
	s.all.Wait()
}

// The agent is killed, the module replaced, removed during a stream and applied again: every byte arrives once and in
// order.
func TestSocketsUnderTraffic(t *testing.T) {
	n := newSocketsNode(t)
	n.apply(accelerator("*"))
	n.untilRedirected()
	s := startTalks(t, n.web, n.db, 8)
	for end, round := time.Now().Add(trafficTime(t)), 0; round < 4 || time.Now().Before(end); round++ {
		fresh := startTalks(t, n.web, n.db, 2) // connections from before the module was applied again stay with TCP
		n.untilRedirected()
		switch round % 4 {
		case 0:
			n.Kill()
			time.Sleep(100 * time.Millisecond) // traffic without an agent
			n.start()
		case 1:
			n.must("module", "delete", "accel")
			n.apply(accelerator("*"))
		case 2:
			n.must("module", "delete", "accel")
			n.Kill() // while it releases its sockets
			n.start()
			n.awaitUnpinned("accel")
			n.apply(accelerator("*"))
		case 3:
			other := accelerator("*")
			other.Spec.Config["thresholds"] = map[string]any{"backlog": 100_000 + round}
			n.apply(other)
		}
		n.untilRedirected()
		if fresh.finish() == 0 {
			t.Errorf("round %d: nothing went through new connections", round)
		}
	}
	n.Stop()
	n.must("purge", n.Flags()...)
	if sum := s.finish(); sum == 0 {
		t.Error("nothing went through")
	}
}

// untilRedirected waits until new connections are redirected; the first one of a program may precede the verdict on it.
func (n *node) untilRedirected() {
	n.T.Helper()
	before := n.redirected()
	n.Eventually("connections are redirected", func() bool {
		s := startTalks(n.T, n.web, n.db, 1)
		time.Sleep(50 * time.Millisecond) // the connection exchanges data in the meantime
		s.finish()
		return n.redirected() > before
	})
}

// awaitUnpinned waits until nothing of a module is pinned.
func (n *node) awaitUnpinned(module string) {
	n.T.Helper()
	n.Eventually("module "+module+" is gone", func() bool {
		_, err := os.Stat(filepath.Join(n.BPF, "modules", module))
		return os.IsNotExist(err)
	})
}

func TestSocketsPurge(t *testing.T) {
	for name, end := range map[string]func(*node){"after SIGTERM": func(n *node) { n.Stop() },
		"after kill -9": func(n *node) { n.Kill() }} {
		t.Run(name, func(t *testing.T) {
			n := newSocketsNode(t)
			n.apply(accelerator("*"))
			s := startTalks(t, n.web, n.db, 4)
			time.Sleep(200 * time.Millisecond) // connections are open and in use
			o := n.objects()
			if len(o.programs) < 3 || len(o.links) != 1 {
				t.Fatalf("before the purge: %+v", o)
			}
			end(n)
			n.must("purge", append(n.Flags(), "--all")...)
			n.checkPurged(o)
			if s.finish() == 0 {
				t.Error("nothing went through")
			}
		})
	}
}

// Two agents on one cgroup do not interfere, and an unusable cgroup is reported.
func TestSocketsOfTwoAgents(t *testing.T) {
	n := newSocketsNode(t)
	n.apply(accelerator("*"))
	other := newNode(t)
	other.cgroup = n.cgroup
	other.start()
	other.apply(other.both())
	other.apply(accelerator("*"))
	n.untilRedirected()
	other.untilRedirected()
	s := startTalks(t, n.web, n.db, 2)
	other.must("module", "delete", "accel")
	s.finish()
	n.untilRedirected()
}

// inContainer is a shell script that runs kerb; it runs the agent in a separate cgroup namespace and without the mount
// of the node's cgroups, as a container runtime does.
const inContainer = `#!/bin/sh
[ "$1" = agent ] || exec %[1]s "$@"
echo $$ > %[2]s/cgroup.procs
exec unshare --cgroup --mount sh -c 'mount -t cgroup2 none %[3]s && umount -l %[4]s && exec "$0" "$@"' %[1]s "$@"
`

// An agent that can access only the cgroups of its own container reports that in the response to a change, and in the
// status of the affected modules: no connection of other containers is redirected.
func TestAgentSeesOnlyItsContainersCgroups(t *testing.T) {
	n := newNode(t)
	mount, err := cgroup.Mount()
	if err != nil {
		t.Skip(err)
	}
	script, own := filepath.Join(n.Dir, "contained"), filepath.Join(n.Dir, "cgroup")
	text := fmt.Sprintf(inContainer, n.Binary, cgrouptest.New(t, "", "kerb-contained"), own, mount)
	if err := errors.Join(os.Mkdir(own, 0o755), os.WriteFile(script, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	n.Binary = script
	n.start()
	t.Cleanup(n.Stop) // before its cgroup is removed
	n.apply(n.both())
	data, err := json.Marshal(accelerator("*"))
	if err != nil {
		t.Fatal(err)
	}
	r := n.input(string(data), "apply", "-f", "-")
	if want := "warning: Module accel: " + cgroup.ErrOwnOnly.Error(); r.code != 0 || !strings.Contains(r.stderr, want) {
		t.Errorf("exit status %d: %s, want %s", r.code, r.stderr, want)
	}
	var m v1.Module
	n.Must(http.MethodGet, "/v1/modules/accel", nil, &m)
	placed := v1.Condition{}
	for _, c := range m.Status.Conditions {
		if c.Type == "Placed" {
			placed = c
		}
	}
	if placed.Status != "False" || placed.Reason != "OwnCgroupsOnly" || placed.Message != cgroup.ErrOwnOnly.Error() {
		t.Errorf("%+v", placed)
	}
}
