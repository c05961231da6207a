// SPDX-License-Identifier: Apache-2.0

// Package sockprobe tests how TCP sockets whose data BPF redirects (sockmap) behave on this kernel: it compares each
// behaviour that programs rely on with that of plain TCP. A run takes about a second, mostly waiting.
package sockprobe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/dataplane/probe"
)

// Check is the outcome of one behaviour.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`               // it is as it is with TCP
	Detail string `json:"detail,omitempty"` // what was seen instead
}

// Result is what was found.
type Result struct {
	Checks     []Check     `json:"checks"`
	RoundTrips []RoundTrip `json:"turns,omitempty"` // none if they could not be measured
}

// ByName returns for each behaviour whether it is the same as with TCP.
func (r Result) ByName() map[string]bool {
	out := map[string]bool{}
	for _, c := range r.Checks {
		out[c.Name] = c.OK
	}
	return out
}

// most is how long all of it may take; an emulated machine needs some ten seconds.
const most = 30 * time.Second

// Run tests each behaviour once, with sockets in a temporary network namespace. It returns an error if redirection does
// not work at all or cannot be tested, for example without CAP_SYS_ADMIN.
func Run(ctx context.Context) (Result, error) { return run(ctx, checks) }

func run(ctx context.Context, checks []check) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	type outcome struct {
		result Result
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		runtime.LockOSThread()
		result, err := testInChild(ctx, checks)
		done <- outcome{result, err}
	}()
	out := <-done
	return out.result, out.err
}

// testInChild runs testInProcess and brings the thread back: one that is locked would end with its goroutine, but not
// the process's first, which would keep the namespace.
func testInChild(ctx context.Context, checks []check) (Result, error) {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Result{}, err
	}
	defer unix.Close(home)
	result, err := testInProcess(ctx, checks)
	if unix.Setns(home, unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return result, err
}

// testInProcess moves the calling thread into a new namespace.
func testInProcess(ctx context.Context, checks []check) (Result, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return Result{}, fmt.Errorf("create a network namespace to try sockets in: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return Result{}, fmt.Errorf("set the loopback interface up: %w", err)
	}
	l, err := newLab(ctx)
	if err != nil {
		return Result{}, err
	}
	defer l.close()
	return l.all(checks)
}

// lab has the relays that sockets are put into.
type lab struct {
	ctx     context.Context
	relays  map[mode]*probe.Relay
	checked []Check
}

// mode is what happens to the data of a connection.
type mode int

const (
	redirected mode = iota // each message goes to the other end's queue
	passed                 // the sockets are in the map; messages continue by TCP
)

func newLab(ctx context.Context) (*lab, error) {
	l := &lab{ctx: ctx, relays: map[mode]*probe.Relay{}}
	for _, m := range []mode{redirected, passed} {
		r, err := probe.NewRelay(m == redirected)
		if err != nil {
			l.close()
			return nil, err
		}
		l.relays[m] = r
	}
	return l, nil
}

func (l *lab) close() {
	for _, r := range l.relays {
		r.Close()
	}
}

// all runs the checks one after the other.
func (l *lab) all(checks []check) (Result, error) {
	for _, c := range checks {
		if err := l.ctx.Err(); err != nil {
			return Result{}, fmt.Errorf("the behaviour of sockets could not be tried in %v: %w", most, err)
		}
		err := l.try(&c)
		if broken, ok := errors.AsType[*brokenError](err); ok {
			return Result{}, broken.error
		}
		l.note(c.name, err)
	}
	turns, err := l.roundTrips()
	if err != nil {
		slog.Warn("the benefit of redirection on this machine was not measured", "error", err)
	}
	return Result{l.checked, turns}, nil
}

// A busy machine must not make a behaviour look worse than it is, nor better.
const (
	mostTries = 3 // of a check that was not served in time
	mustPass  = 5 // tries of one that passes by chance when its threads do not run in time
)

// try has a check pass, or fail for a reason that is no lack of time.
func (l *lab) try(c *check) (err error) {
	for passed, failed := 0, 0; failed < mostTries; {
		p, broken := l.connect(c.mode)
		if broken != nil {
			return &brokenError{broken}
		}
		err = c.run(p)
		p.close()
		switch {
		case err == nil && (!c.races || passed == mustPass-1):
			return nil
		case err == nil:
			passed++
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR): // by a signal to the process
			failed++
		default:
			return err
		}
	}
	return err
}

// brokenError: nothing can be tried.
type brokenError struct{ error }

func (l *lab) note(name string, err error) {
	_, untried := errors.AsType[*notTestedError](err)
	c := Check{Name: name, OK: err == nil || untried}
	if err != nil {
		c.Detail = err.Error()
	}
	l.checked = append(l.checked, c)
}

// notTestedError: what the behaviour needs is not in this kernel, so that no program can use it.
type notTestedError struct{ reason string }

func (e *notTestedError) Error() string { return e.reason }
