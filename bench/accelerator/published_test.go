// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

func openedContender(t *testing.T, config string) *contender {
	t.Helper()
	c, err := newMeshExperiment(t, "none").contender(t.Context(), config)
	if errors.Is(err, bench.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The published keys match the peer socket of a connection to a translated service address: messages are redirected,
// not sent as segments.
func TestPublishedKeys(t *testing.T) {
	for config, redirected := range map[string]bool{"plain": false, publishedKeys: true} {
		c := openedContender(t, config)
		s, err := c.serve(t.Context(), c.workload("echo"))
		if err != nil {
			t.Fatal(err)
		}
		samples, err := s.round(t.Context())
		if err = errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		checkMeshFigures(t, "echo", samples)
		at := slices.IndexFunc(samples, func(s bench.Sample) bool { return s.Metric == "segments" })
		if sent := samples[at].Value; (sent < float64(c.lengths.trips)) != redirected {
			t.Errorf("%s: %v segments for %d requests", config, sent, c.lengths.trips)
		}
	}
}

// outsideClient connects to its own server and, from the same source port, to a server outside the cgroup. Its
// arguments are the port of the latter, and what its own server must receive; without it, the program waits for a
// while.
const outsideClient = `
import socket, sys
def bound(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port))
    return s
listener = bound(7300)
listener.listen()
mine = bound(40000)
mine.connect(("127.0.0.1", 7300))
inner, _ = listener.accept()
other = bound(40000)
other.connect(("127.0.0.1", int(sys.argv[1])))
other.sendall(b"secret")
if not sys.argv[2]:
    inner.settimeout(2)
try:
    print(inner.recv(16).decode())
except TimeoutError:
    pass
`

// A defect of the published keys: they lack the server's address, so that two connections from one source port have the
// same key, and a process receives data for another.
func TestPublishedKeysMisdeliver(t *testing.T) {
	for config, misdelivered := range map[string]string{"plain": "", "kerb": "", publishedKeys: "secret"} {
		t.Run(config, func(t *testing.T) {
			c := openedContender(t, config)
			got := make(chan string, 1)
			port := c.listenOutside(t, got)
			python, err := pythonPath()
			if err != nil {
				t.Skip(err)
			}
			cmd, err := c.command(t.Context(), c.place.client.Namespace, clientSide, python, "-c", outsideClient, port,
				misdelivered)
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if wrong := strings.TrimSpace(string(out)); wrong != misdelivered {
				t.Errorf("the server that was not meant got %q, want %q", wrong, misdelivered)
			}
			if right := <-got; (right == "") != (misdelivered != "") {
				t.Errorf("the server that was meant got %q", right)
			}
		})
	}
}

// listenOutside serves one connection on the client's loopback, in this process, and reports what it receives.
func (c *contender) listenOutside(t *testing.T, got chan<- string) (port string) {
	t.Helper()
	var l net.Listener
	err := c.place.client.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		text, _ := io.ReadAll(conn)
		got <- string(text)
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// If a workload fails with the published design, the report has a note, and the run continues.
func TestPublishedFailures(t *testing.T) {
	e := newVariant(mesh)
	e.run = bench.NewRun(bench.Experiment{}, true, bench.MinRounds, nil, io.Discard)
	rounds := 0
	trial := e.noteFailures("none/x", bench.Trial{Config: publishedKeys,
		Open: func() (io.Closer, error) { return closer(func() error { return errors.New("the server ended") }), nil },
		Measure: func(ctx context.Context) ([]bench.Sample, error) {
			rounds++
			return nil, errors.New("hangs")
		}})
	if err := e.run.Interleave(t.Context(), "none/x", trial); err != nil {
		t.Error(err)
	}
	if notes := e.run.Report().Notes; rounds != 1 || len(notes) != 1 || !strings.Contains(notes[0], "hangs") {
		t.Errorf("%d rounds, %q", rounds, notes)
	}
}

// A workload whose first use fails with the published design is left out.
func TestPublishedLeavesOut(t *testing.T) {
	e := newVariant(mesh)
	s := &serving{contender: &contender{experiment: e, config: publishedKeys},
		w: workload{name: "x", measure: func(ctx context.Context, _ *serving) ([]bench.Sample, error) {
			if until, ok := ctx.Deadline(); !ok || time.Until(until) > firstTimeout {
				t.Error("it may hang indefinitely")
			}
			return nil, errors.New("hangs")
		}}}
	if err := s.warm(t.Context()); !errors.Is(err, bench.ErrLeftOut) {
		t.Error(err)
	}
}
