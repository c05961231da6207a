// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/seed"
)

// soakTime returns how long conversations continue: KERB_SOAK, or a moment.
func soakTime(t *testing.T, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("KERB_SOAK")
	if text == "" {
		return usual
	}
	lasts, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KERB_SOAK: %v", err)
	}
	return lasts
}

// soak has conversations between all of a node's services, and within one.
type soak struct {
	n       *node
	options []string
	servers []*peer
	clients []*peer
}

const soakThreads = "6" // concurrent conversations of each client

// blocking peers wait in recv, where redirected sockets do not hide signals.
const blocking = "-b"

// allowed returns a config that accelerates the peers.
func allowed() map[string]any {
	return map[string]any{"programs": map[string]any{"allow": []string{filepath.Base(talker)}}}
}

// newSoak starts conversations; the seed of the package reproduces their content.
func newSoak(n *node, options ...string) *soak {
	n.T.Helper()
	first := seed.Of(n.T)
	s := &soak{n: n, options: append([]string{"-s", strconv.FormatUint(first, 10)}, options...)}
	for _, h := range []*netlab.Host{n.a, n.b} {
		s.servers = append(s.servers, n.serve(h, s.options...))
	}
	s.clients = []*peer{s.talk(n.a, addresses(n.b)), s.talk(n.b, append(addresses(n.a), loopback...)),
		s.talk(n.a, loopback)}
	return s
}

func (s *soak) talk(h *netlab.Host, addresses []string) *peer {
	args := append(s.options[:len(s.options):len(s.options)], "talk", soakThreads)
	return s.n.startPeer(h, silence, append(args, to(addresses)...)...)
}

// finish waits for all ends of all conversations, and checks that none failed. It returns how often a blocking call has
// returned EAGAIN.
func (s *soak) finish() (again int) {
	s.n.T.Helper()
	total := int64(0)
	for _, p := range append(s.clients, s.servers...) {
		s.n.Eventually("a conversation of "+p.what, func() bool { return p.ended() || p.talks.Load() > 0 })
	}
	for _, p := range s.clients {
		_ = p.stdin.Close() // all at the same time
	}
	for _, p := range append(s.clients, s.servers...) { // servers end after their last conversation
		if err := p.finish(); err != nil {
			s.n.T.Error(err)
		}
		s.n.T.Logf("%s: %s", p.what, p.last)
		var talks, cut, bytes, now int
		if _, err := fmt.Sscanf(p.last, "done %d conversations, %d cut, %d bytes, %d EAGAIN", &talks, &cut, &bytes,
			&now); err != nil || talks == 0 {
			s.n.T.Errorf("it has shown nothing: %v", err)
		}
		total += p.bytes.Load()
		again += now
	}
	s.n.T.Logf("%.1f GB", float64(total)/1e9)
	return again
}

// Conversations of all kinds arrive byte for byte, and end correctly.
func TestSoak(t *testing.T) {
	for name, options := range map[string][]string{"poll": nil, "blocking": {blocking}} {
		t.Run(name, func(t *testing.T) {
			n := newAcceleratedNode(t, allowed())
			s := newSoak(n, options...)
			time.Sleep(soakTime(t, 2*time.Second)) // of conversations
			n.checkVerdicts(filepath.Base(talker))
			if again := s.finish(); again > 0 && options == nil {
				t.Errorf("%d calls that wait have answered EAGAIN", again)
			}
		})
	}
}

// Processes are killed during conversations: all data until then is correct, and the other side gets an end of the
// connection.
func TestKilledPeers(t *testing.T) {
	n := newAcceleratedNode(t, allowed())
	s, r := newSoak(n, blocking, "-c"), seed.Rand(t)
	killed := 0
	for end := time.Now().Add(soakTime(t, 2*time.Second)); time.Now().Before(end); killed++ {
		time.Sleep(time.Duration(50+r.IntN(250)) * time.Millisecond) // until a random moment of conversations
		i := r.IntN(2)
		if r.IntN(2) == 0 {
			s.servers[i].kill()
			s.servers[i] = n.serve([]*netlab.Host{n.a, n.b}[i], s.options...)
		} else {
			s.clients[i].kill()
			s.clients[i] = s.talk([]*netlab.Host{n.a, n.b}[i], addresses([]*netlab.Host{n.b, n.a}[i]))
		}
	}
	n.checkVerdicts(filepath.Base(talker))
	s.finish()
	t.Logf("%d processes killed", killed)
}
