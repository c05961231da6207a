// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/node"
)

// floodPort is the port in testdata/flood.
const floodPort = 9999

// receiver counts the packets of floods that the node receives after all programs on interfaces.
type receiver struct{ udp, tcp atomic.Int64 }

func newReceiver(m *machine) *receiver {
	m.T.Helper()
	r := &receiver{}
	for protocol, count := range map[int]*atomic.Int64{unix.IPPROTO_UDP: &r.udp, unix.IPPROTO_TCP: &r.tcp} {
		fd := -1
		err := m.Lab.Node().Do(func() (err error) {
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
			return err
		})
		if err != nil {
			m.T.Fatal(err)
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
			m.T.Fatal(err)
		}
		var ended atomic.Bool
		var reading sync.WaitGroup
		reading.Go(func() {
			for packet := make([]byte, 2048); !ended.Load(); {
				if n, _, err := unix.Recvfrom(fd, packet, 0); err == nil && isFlood(packet[:n]) {
					count.Add(1)
				}
			}
		})
		m.T.Cleanup(func() { ended.Store(true); reading.Wait(); unix.Close(fd) })
	}
	return r
}

// isFlood reports whether an IPv4 packet of TCP or UDP has floodPort as destination.
func isFlood(packet []byte) bool {
	if len(packet) == 0 {
		return false
	}
	at := int(packet[0]&0xf)*4 + 2
	return len(packet) >= at+2 && binary.BigEndian.Uint16(packet[at:]) == floodPort
}

// counts returns the packets since the last call.
func (r *receiver) counts() string {
	return fmt.Sprintf("%d UDP, %d TCP", r.udp.Swap(0), r.tcp.Swap(0))
}

// flood runs containers whose first instructions flood the node, waits until all packets have been sent, and returns
// the number of packets received.
func (m *machine) flood(r *receiver, app string, names ...string) string {
	m.T.Helper()
	r.counts()
	var starting sync.WaitGroup
	errs := make([]error, len(names))
	for i, name := range names {
		args := m.args(name, app)
		starting.Go(func() {
			if out, err := m.start(name, []string{"/bin/flood"}, args...); err != nil {
				errs[i] = fmt.Errorf("%s: %w: %s", name, err, out)
			}
		})
	}
	starting.Wait()
	for _, err := range errs {
		if err != nil {
			m.T.Fatal(err)
		}
	}
	for _, name := range names {
		m.Eventually(name+" has sent its packets", func() bool { return m.sent(name) })
	}
	time.Sleep(200 * time.Millisecond) // longer than packets wait in queues of the kernel
	return r.counts()
}

// args returns the arguments for a container with a label. Containers of containerd get a network.
func (m *machine) args(name, app string) []string {
	m.T.Helper()
	args := []string{"--label", "app=" + app}
	if m.runtime == "containerd" {
		args = append(args, "--with-ns", "network:"+m.Host(name).Path())
	}
	return args
}

// sent reports whether the process of a container has sent all packets.
func (m *machine) sent(name string) bool {
	m.T.Helper()
	pid := m.pid(name)
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%s/comm", pid))
	return err == nil && strings.TrimSpace(string(comm)) == "flooded"
}

func (m *machine) pid(name string) string {
	m.T.Helper()
	if m.runtime != "containerd" {
		return strings.TrimSpace(m.do("inspect", "--format", "{{.State.Pid}}", name))
	}
	for line := range strings.Lines(m.do("tasks", "list")) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			return f[1]
		}
	}
	return ""
}

const nothing = "0 UDP, 0 TCP"

func TestFirstPacketDocker(t *testing.T)     { firstPacket(t, "docker") }
func TestFirstPacketPodman(t *testing.T)     { firstPacket(t, "podman") }
func TestFirstPacketContainerd(t *testing.T) { firstPacket(t, "containerd") }

// firstPacket checks that with the hook not one packet of a container passes a module that denies all, and that without
// it some do.
func firstPacket(t *testing.T, runtime string) {
	deny := node.Module("deny", "firewall", "app=denied", map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "deny"}})
	t.Run("hook", func(t *testing.T) {
		m := newMachine(t, runtime, "--fail-closed", "--timeout", "60s")
		r := newReceiver(m)
		m.Start()
		m.Apply(deny)
		if got := m.flood(r, "open", "open"); strings.Contains(got, " 0 ") || strings.HasPrefix(got, "0 ") {
			t.Fatalf("of a container that no module denies %s arrived: the test shows nothing", got)
		}
		for round := range 3 {
			var names []string
			for i := range 4 {
				names = append(names, fmt.Sprintf("denied%d%d", round, i))
			}
			if got := m.flood(r, "denied", names...); got != nothing {
				t.Errorf("%s of %v passed", got, names)
			}
		}
		for name, s := range m.services() {
			if s.Metadata.Labels[labelBy] != byHook || s.Metadata.Labels["app"] == "" {
				t.Errorf("service %s has labels %v", name, s.Metadata.Labels)
			}
		}
		if c := m.integration(); c.Status != "True" || !strings.Contains(c.Message, "13 of them since before") {
			t.Errorf("the agent reports %+v", c)
		}
		m.failClosed(r)
	})
	t.Run("events", func(t *testing.T) {
		m := newMachine(t, runtime)
		r := newReceiver(m)
		m.Start()
		m.Apply(deny)
		for i := range 10 {
			if got := m.flood(r, "denied", fmt.Sprint("denied", i)); got != nothing {
				t.Logf("container %d without a hook: %s", i, got)
				return
			}
		}
		t.Error("no packet of 10 containers passed without the hook, so that the test shows nothing")
	})
}

// failClosed checks that while the agent is down no container starts, that a waiting one starts with its modules when
// the agent is back, and that running ones keep theirs.
func (m *machine) failClosed(r *receiver) {
	t := m.T
	before := m.services()
	m.Kill()
	args := m.args("waits", "denied")
	started := make(chan error, 1)
	go func() {
		out, err := m.start("waits", []string{"/bin/flood"}, args...)
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		started <- err
	}()
	m.Start()
	if err := <-started; err != nil {
		t.Errorf("a container that starts while the agent does: %v", err)
	}
	m.Eventually("the container has sent its packets", func() bool { return m.sent("waits") })
	if got := r.counts(); got != nothing {
		t.Errorf("%s passed while the agent was started", got)
	}
	for name, s := range before {
		if now := m.services()[name]; now.Spec != s.Spec || now.Metadata.Labels[labelBy] != byHook {
			t.Errorf("service %s is %+v after a restart of the agent, and was %+v", name, now, s)
		}
	}
}

// Docker restarts containers before its API responds, and after a boot the integration has received no events: their
// names and labels are known nevertheless.
func TestDockerBoots(t *testing.T) {
	m := newMachine(t, "docker", "--fail-closed", "--timeout", "60s")
	m.Start()
	m.Apply(node.Module("deny", "firewall", "app=denied", map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "deny"}}))
	r := newReceiver(m)
	args := append(m.args("web", "denied"), "--restart", "always")
	if out, err := m.start("web", []string{"/bin/flood"}, args...); err != nil {
		t.Fatal(err, out)
	}
	before := m.awaitServices("docker-web")["docker-web"]
	pid, err := strconv.Atoi(m.pid("web"))
	if err != nil {
		t.Fatal(err)
	}
	m.stopRuntime()
	m.Stop()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.Start()
	m.serve()
	m.Eventually("the container floods again", func() bool { return m.pid("web") != strconv.Itoa(pid) && m.sent("web") })
	after := m.services()["docker-web"]
	if after.Spec == before.Spec || after.Metadata.Labels[labelBy] != byHook || after.Metadata.Labels["app"] != "denied" {
		t.Errorf("after a boot the service is %+v, and was %+v", after, before)
	}
	if got := r.counts(); got != nothing {
		t.Errorf("%s passed", got)
	}
}

// A rejected start leaves nothing behind that would prevent the next one.
func TestNextStart(t *testing.T) {
	for _, runtime := range []string{"docker", "podman"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime, "--fail-closed", "--timeout", "1s")
			if out, err := m.start("web", []string{"/bin/busybox", "sleep", "1000"}, m.args("web", "web")...); err == nil {
				t.Fatalf("without the agent the container starts: %s", out)
			}
			m.Start()
			m.Eventually("the integration serves", func() bool { return m.integration().Status == "True" })
			m.Eventually("the next start succeeds", func() bool { _, err := m.try("start", "web"); return err == nil })
			if s := m.awaitServices(runtime + "-web")[runtime+"-web"]; s.Metadata.Labels[labelBy] != byHook {
				t.Errorf("labels of the container: %v", s.Metadata.Labels)
			}
		})
	}
}

// Without the agent a container does not start with --fail-closed, and the error names the reason. Otherwise it starts,
// and becomes a service through the runtime's events.
func TestAgentAway(t *testing.T) {
	closed := newMachine(t, "containerd", "--fail-closed", "--timeout", "1s")
	out, err := closed.start("web", []string{"/bin/busybox", "sleep", "1000"}, closed.args("web", "web")...)
	if err == nil || !strings.Contains(out, "systemctl start kerb") {
		t.Errorf("without the agent: %v %s", err, out)
	}
	open := newMachine(t, "containerd", "--timeout", "1s")
	open.run("web", "--label", "app=web")
	open.Start()
	if s := open.awaitServices("containerd-web")["containerd-web"]; s.Metadata.Labels[labelBy] != byEvents {
		t.Errorf("labels of the container: %v", s.Metadata.Labels)
	}
}
