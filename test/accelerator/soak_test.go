// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/netlab"
)

// soakTime is how long conversations go on: as long as KERB_SOAK says, or a moment.
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

// soak is conversations between all of a node's services, and within one.
type soak struct {
	n       *node
	options []string
	servers []*peer
	clients []*peer
}

const soakThreads = 6 // conversations of each client at a time

// newSoak starts conversations that begin during the time; its seed is told, for when it fails.
func newSoak(n *node, lasts time.Duration, options ...string) *soak {
	n.t.Helper()
	seed := rand.Uint64()
	n.t.Logf("seed %d", seed)
	s := &soak{n: n, options: append([]string{"-s", strconv.FormatUint(seed, 10)}, options...)}
	for _, h := range []*netlab.Host{n.a, n.b} {
		s.servers = append(s.servers, n.serve(h, s.options...))
	}
	s.clients = []*peer{s.talk(n.a, lasts, addresses(n.b)), s.talk(n.b, lasts, append(addresses(n.a), loopback...)), s.talk(n.a, lasts, loopback)}
	return s
}

func (s *soak) talk(h *netlab.Host, lasts time.Duration, addresses []string) *peer {
	args := append(s.options[:len(s.options):len(s.options)], "talk", fmt.Sprint(lasts.Seconds()), strconv.Itoa(soakThreads))
	return s.n.startPeer(h, silence, append(args, to(addresses)...)...)
}

// finish waits for all ends of all conversations, and checks that none went wrong.
func (s *soak) finish() {
	s.n.t.Helper()
	total := int64(0)
	for _, p := range append(s.clients, s.servers...) { // the servers end after their last conversation
		if err := p.finish(); err != nil {
			s.n.t.Error(err)
		}
		s.n.t.Logf("%s: %s", p.what, p.last)
		if !strings.HasPrefix(p.last, "done ") || strings.HasPrefix(p.last, "done 0 ") {
			s.n.t.Error("it has shown nothing")
		}
		total += p.bytes.Load()
	}
	s.n.t.Logf("%.1f GB", float64(total)/1e9)
	s.n.judged(filepath.Base(talker))
}

// Conversations in all manners arrive byte for byte, and end as they should.
func TestSoak(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	newSoak(n, soakTime(t, 4*time.Second)).finish()
}

// Processes die in the middle of conversations: what arrives is right until then, and the other side gets an end.
func TestKilledPeers(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	lasts := soakTime(t, 3*time.Second)
	end := time.Now().Add(lasts)
	s := newSoak(n, lasts, "-c")
	killed := 0
	for ; time.Now().Add(time.Second).Before(end); killed++ {
		time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond)
		i := rand.IntN(2)
		if rand.IntN(2) == 0 {
			s.servers[i].kill()
			s.servers[i] = n.serve([]*netlab.Host{n.a, n.b}[i], s.options...)
		} else {
			s.clients[i].kill()
			s.clients[i] = s.talk([]*netlab.Host{n.a, n.b}[i], time.Until(end), addresses([]*netlab.Host{n.b, n.a}[i]))
		}
	}
	s.finish()
	t.Logf("%d processes killed", killed)
}
