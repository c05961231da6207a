// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/modules/intercept"
)

func interceptor(classes string) v1.Module {
	var config map[string]any
	if err := json.Unmarshal([]byte(`{"classes": `+classes+`}`), &config); err != nil {
		panic(err)
	}
	return module("icpt", "intercept", "app=web", config)
}

// program is one that has connected to the module's socket.
type program struct {
	t    *testing.T
	conn *net.UnixConn
}

// connect waits for the socket.
func (n *node) connect(t *testing.T) *program {
	t.Helper()
	var conn *net.UnixConn
	wait.Until(t, "the module's socket is there", func() (ok bool) {
		var err error
		conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: n.cfg.Paths.ModuleSocket("icpt"), Net: "unixpacket"})
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	return &program{t, conn}
}

func (p *program) send(text string) {
	p.t.Helper()
	if _, err := p.conn.Write([]byte(text)); err != nil {
		p.t.Fatal(err)
	}
}

// receive returns a message with its descriptors; "" when the connection has ended.
func (p *program) receive() (string, []int) {
	p.t.Helper()
	data, rights := make([]byte, 4096), make([]byte, 256)
	_ = p.conn.SetReadDeadline(time.Now().Add(patience))
	n, rn, _, _, err := p.conn.ReadMsgUnix(data, rights)
	if os.IsTimeout(err) {
		p.t.Fatal("no answer")
	}
	if err != nil || n == 0 {
		return "", nil
	}
	var fds []int
	messages, _ := unix.ParseSocketControlMessage(rights[:rn])
	for _, m := range messages {
		more, _ := unix.ParseUnixRights(&m)
		fds = append(fds, more...)
	}
	p.t.Cleanup(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	return string(data[:n]), fds
}

// open opens a class that must be free.
func (p *program) open(class string) (slot int, fds []int) {
	p.t.Helper()
	p.send(fmt.Sprintf(`{"open": %q, "pid": %d}`, class, os.Getpid()))
	text, fds := p.receive()
	var answer struct{ Slot int }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(fds) != 3 {
		p.t.Fatalf("%s with %d descriptors", text, len(fds))
	}
	return answer.Slot, fds
}

// records are how many a ring has had, without reading them.
func (p *program) records(ring int) uint64 {
	p.t.Helper()
	page := os.Getpagesize()
	producer, err := unix.Mmap(ring, int64(page), page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(producer) }()
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(producer)))) / (64 + 64) // the smallest step
}

func (n *node) classes(t *testing.T) (all []intercept.ClassReport) {
	t.Helper()
	if status, text := n.ask(t, "icpt", "GET", "/classes", nil); json.Unmarshal([]byte(text), &all) != nil {
		t.Fatalf("%d %s", status, text)
	}
	return all
}

func (n *node) sendTo(t *testing.T, port int) {
	t.Helper()
	err := n.db.Do(func() error {
		conn, err := net.Dial("udp", net.JoinHostPort(n.web.Addr4().String(), fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("x")) // an earlier one may have been refused
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Programs open classes by the agent's socket, with the rights to no more than that; one program has a class, until it
// goes or another takes over.
func TestProgramsOpenClasses(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(),
		interceptor(`[{"name": "a", "match": {"protocol": "udp", "ports": [7000]}, "action": "steal"}, {"name": "drops", "action": "pass"}]`))
	first := n.connect(t)
	slot, fds := first.open("a")
	if slot != 0 {
		t.Errorf("slot %d", slot)
	}
	wait.Until(t, "packets are stolen", func() bool {
		n.sendTo(t, 7000)
		return first.records(fds[0]) > 0
	})
	for _, c := range []struct{ request, want string }{
		{`{"open": "a"}`, "has a consumer"}, {`{"open": "drops"}`, "no class"}, {`{"open": "b"}`, "known are: a"},
		{`{}`, "no class"},
		{`what?`, "first message"}, {strings.Repeat("x", 3000), "first message"},
	} {
		other := n.connect(t)
		other.send(c.request)
		if text, fds := other.receive(); !strings.Contains(text, c.want) || len(fds) != 0 {
			t.Errorf("%.40s: %s", c.request, text)
		}
		if text, _ := other.receive(); text != "" {
			t.Errorf("%.40s: after the refusal %s", c.request, text)
		}
	}
	second := n.connect(t)
	second.send(`{"open": "a", "takeover": true, "pid": 2}`)
	if text, fds := second.receive(); len(fds) != 3 {
		t.Errorf("takeover: %s", text)
	}
	if text, _ := first.receive(); text != `{"event":"taken"}` {
		t.Errorf("the previous consumer receives %s", text)
	}
	if c := n.classes(t)[0]; c.Program == nil || c.Program.PID != 2 {
		t.Errorf("%+v", c)
	}
	second.conn.Close()
	wait.Until(t, "the class has no program", func() bool { return n.classes(t)[0].Program == nil })
	wait.Until(t, "packets pass", func() bool {
		n.sendTo(t, 7000)
		return n.classes(t)[0].Unread > 0
	})
}

// A change of the configuration, and a control plane that is killed, end connections; programs come again.
func TestProgramsComeAgain(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), interceptor(`[{"name": "a", "action": "steal"}]`))
	p := n.connect(t)
	_, old := p.open("a")
	n.apply(t, n.both(),
		interceptor(`[{"name": "new", "match": {"protocol": "tcp"}}, {"name": "a", "match": {"protocol": "udp"}, "action": "steal"}]`))
	if text, _ := p.receive(); text != `{"event":"moved"}` {
		t.Errorf("got %s", text)
	}
	before := p.records(old[0])
	wait.Until(t, "packets are kept for it, as it is about to come", func() bool {
		n.sendTo(t, 7000)
		return n.classes(t)[1].Delivered > 0
	})
	p = n.connect(t)
	slot, fds := p.open("a")
	if slot != 1 {
		t.Errorf("slot %d", slot)
	}
	if p.records(fds[0]) == 0 || p.records(old[0]) != before {
		t.Errorf("%+v; %d records, %d more in the old ring", n.classes(t)[1], p.records(fds[0]), p.records(old[0])-before)
	}
	m, err := get(t.Context(), n, resource.Module, "icpt")
	if err != nil {
		t.Fatal(err)
	}
	n.Lock.Lock()
	pid := n.Live.Planes()["icpt"].State().PID
	n.Lock.Unlock()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatalf("%v of %+v", err, m.Status)
	}
	if text, _ := p.receive(); text != "" {
		t.Errorf("got %s", text)
	}
	wait.Until(t, "the class can be opened again, with the same ring", func() bool {
		p = n.connect(t) // at first perhaps by the door of the one that is gone
		_, _ = p.conn.Write([]byte(`{"open": "a"}`))
		_, again := p.receive()
		return len(again) == 3 && p.records(again[0]) > 0
	})
}
