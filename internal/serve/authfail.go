// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	failureWindow  = 10 * time.Second // one log line per address in this time
	failureDelay   = 100 * time.Millisecond
	maxDelay       = 2 * time.Second
	maxFailedPeers = 1024 // addresses remembered; more share one entry
)

// authFailures logs failed authentications with a limit per address, and says how long to delay their answers.
type authFailures struct {
	log   *slog.Logger
	total atomic.Uint64

	mu sync.Mutex
	by map[netip.Addr]*failures
}

func newAuthFailures() *authFailures {
	return &authFailures{log: slog.Default(), by: map[netip.Addr]*failures{}}
}

type failures struct {
	delay  time.Duration // of the answer to the next
	silent int           // since the last log line
}

// note records a failure of a client. The first of an address is logged, later ones as a number every failureWindow.
func (f *authFailures) note(remote, reason string) (delay time.Duration) {
	f.total.Add(1)
	from := clientOf(remote)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by[from] == nil && len(f.by) >= maxFailedPeers {
		from = netip.Addr{}
	}
	seen := f.by[from]
	if seen == nil {
		f.by[from] = &failures{delay: failureDelay}
		f.log.Warn("authentication failed", "remote", remote, "reason", reason)
		time.AfterFunc(failureWindow, func() { f.summarise(from) })
		return 0
	}
	seen.silent++
	delay = seen.delay
	seen.delay = min(2*delay, maxDelay)
	return delay
}

// summarise logs what note did not, and forgets an address that has stopped failing.
func (f *authFailures) summarise(from netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.by[from]
	if seen.silent == 0 {
		delete(f.by, from)
		return
	}
	f.log.Warn("authentication failed repeatedly", "address", from, "times", seen.silent, "in", failureWindow)
	seen.silent = 0
	time.AfterFunc(failureWindow, func() { f.summarise(from) })
}

// handshakeLog takes the lines that net/http logs. Those of failed TLS handshakes are failed authentications.
type handshakeLog struct {
	failures *authFailures
	log      *slog.Logger
}

func (h handshakeLog) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	rest, ok := strings.CutPrefix(text, "http: TLS handshake error from ")
	if remote, reason, found := strings.Cut(rest, ": "); ok && found {
		h.failures.note(remote, reason)
	} else {
		h.log.Debug(text)
	}
	return len(line), nil
}
