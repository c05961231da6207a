// SPDX-License-Identifier: Apache-2.0

// Package integration runs integrations, which connect the agent with an orchestrator: inside the binary, or as a
// program of their own. Each is a child process with few capabilities that uses the agent's API as any client does. The
// agent starts it, restarts it with backoff, carries its log, and stops it; it does not outlive the agent.
package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/integration/link"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/internal/version"
)

const (
	minDelay = 200 * time.Millisecond // before a restart; doubles until
	maxDelay = 30 * time.Second
	steady   = time.Minute     // after running this long the delay is the shortest again
	stopTime = 7 * time.Second // between SIGTERM and SIGKILL

	versionTime = 5 * time.Second // for a program to print its version

	// ReasonVersionsDiffer is the reason of the condition if a program is of another version than the agent.
	ReasonVersionsDiffer = "VersionsDiffer"
)

// Program is an integration that the configuration asks for.
type Program struct {
	Name     string
	Program  string          // its own one, next to this one; empty: this one
	Options  any             // becomes JSON
	Resolves []netip.Prefix  // addresses that it looks up, as the resolver of its name
	resolver *resolve.Remote // nil without Resolves
}

// Set are the integrations of an agent. It is safe for concurrent use.
type Set struct {
	log      *slog.Logger
	onChange func()
	version  string // of the agent

	mu  sync.Mutex
	all []*child
}

// child is one integration.
type child struct {
	Program
	pid     int          // 0 while no process runs
	report  *link.Report // the last one of the process; nil until it serves
	problem string       // why the last process ended, until one serves
	differs string       // that its program is of another version than the agent; empty if not
}

// NewSet prepares integrations. onChange is called when Condition has changed.
func NewSet(programs []Program, log *slog.Logger, onChange func()) *Set {
	s := &Set{log: log, onChange: onChange, version: version.Version()}
	for _, p := range programs {
		if len(p.Resolves) > 0 {
			p.resolver = resolve.NewRemote(p.Name, p.Resolves)
		}
		s.all = append(s.all, &child{Program: p})
	}
	return s
}

// Resolvers returns those integrations that are resolvers.
func (s *Set) Resolvers() (all []resolve.Resolver) {
	for _, c := range s.all {
		if c.resolver != nil {
			all = append(all, c.resolver)
		}
	}
	return all
}

// Run keeps all integrations running until ctx ends, and returns when all have ended.
func (s *Set) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, c := range s.all {
		running.Go(func() { s.keep(ctx, c) })
	}
}

func (s *Set) keep(ctx context.Context, c *child) {
	for delay := minDelay; ; delay = min(2*delay, maxDelay) {
		started := time.Now()
		err := s.once(ctx, c)
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > steady {
			delay = minDelay
		}
		s.log.Error("integration exited", "integration", c.Name, "reason", err, "restartIn", delay)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// once runs the process to its end, which it returns the reason of.
func (s *Set) once(ctx context.Context, c *child) error {
	options, err := json.Marshal(c.Options)
	if err != nil {
		return err
	}
	program := self
	if c.Program.Program != "" {
		if program, err = binpath.NextTo(c.Program.Program); err != nil {
			s.set(func() { c.problem = err.Error() })
			return err
		}
		s.compare(ctx, c, program)
	}
	out := &relay{log: s.log.With("integration", c.Name)}
	cmd := exec.CommandContext(ctx, program, confineCommand, c.Name, string(options), strconv.Itoa(os.Getpid()))
	cmd.Args[0], cmd.Env, cmd.Stdout, cmd.Stderr = "kerb", []string{}, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, stopTime
	if err = s.run(c, cmd); err == nil {
		err = fmt.Errorf("exited by itself")
	}
	if out.first != "" {
		err = fmt.Errorf("%w: %s", err, out.first)
	}
	s.set(func() { c.pid, c.report, c.problem = 0, nil, err.Error() })
	return err
}

// compare notes whether a program is of another version than the agent, as after an update of one of the two. It runs
// anyway: what they exchange changes rarely. A program that cannot print its version fails when it is started.
func (s *Set) compare(ctx context.Context, c *child, program string) {
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Env = []string{}
	out, err := cmd.Output()
	theirs := strings.TrimSpace(string(out))
	if err != nil || !version.Differ(theirs, s.version) {
		s.set(func() { c.differs = "" })
		return
	}
	s.log.Warn("versions differ", "integration", c.Name, "program", program, "version", theirs, "agent", s.version)
	s.set(func() {
		c.differs = fmt.Sprintf("%s is of version %q and the agent of version %q: install both of one version, and restart "+
			"the agent", program, theirs, s.version)
	})
}

// run starts the process, takes its reports, and waits for its end.
func (s *Set) run(c *child, cmd *exec.Cmd) error {
	pipe, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer pipe.Close()
	cmd.ExtraFiles = []*os.File{theirs} // reportFile
	requests, err := cmd.StdinPipe()
	if err != nil {
		theirs.Close()
		return err
	}
	err = sandbox.Start(cmd)
	theirs.Close()
	if err != nil {
		requests.Close()
		return err
	}
	s.set(func() { c.pid = cmd.Process.Pid })
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	if c.resolver != nil {
		out := json.NewEncoder(requests)
		serving.Go(func() { c.resolver.Serve(ctx, func(q link.Request) error { return out.Encode(q) }) })
	}
	s.follow(c, pipe)
	cancel()
	requests.Close() // ends a request that waits for a process that reads no more
	serving.Wait()
	return cmd.Wait()
}

// follow takes the reports and results of a process until it has ended.
func (s *Set) follow(c *child, pipe io.Reader) {
	for reports := json.NewDecoder(pipe); ; {
		var r link.Report
		if reports.Decode(&r) != nil {
			return
		}
		if r.Result == nil {
			s.set(func() { c.report, c.problem = &r, "" })
		} else if c.resolver != nil {
			c.resolver.Take(*r.Result)
		}
	}
}

func (s *Set) set(change func()) {
	s.mu.Lock()
	change()
	s.mu.Unlock()
	s.onChange()
}

// NameOf returns what a process is known as in the log of changes: the integration, or nothing. A process outside the
// agent's PID namespace has the number 0.
func (s *Set) NameOf(pid int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.all, func(c *child) bool { return pid != 0 && c.pid == pid }); i >= 0 {
		return "integration " + s.all[i].Name
	}
	return ""
}

// Condition reports whether all integrations serve, and what they report. Without any there is none.
func (s *Set) Condition() (c v1.Condition, configured bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c = v1.Condition{Type: "Integrations", Status: "True", Reason: "Running"}
	var messages []string
	worst := 0
	for _, one := range s.all {
		rank, reason, message := one.state()
		if rank > worst {
			c.Status, c.Reason, worst = "False", reason, rank
		}
		if message != "" {
			messages = append(messages, one.Name+": "+message)
		}
	}
	c.Message = strings.Join(messages, "; ")
	return c, len(s.all) > 0
}

// state returns what is wrong with an integration, if rank is not 0. The condition has the reason of the highest rank.
func (c *child) state() (rank int, reason, message string) {
	switch {
	case c.problem != "":
		rank, reason, message = 4, "NotRunning", c.problem
	case c.report == nil:
		rank, reason, message = 3, "Starting", "has started and does not serve yet"
	case c.report.Reason != "":
		rank, reason, message = 2, c.report.Reason, c.report.Message
	default:
		message = c.report.Message
	}
	if c.differs == "" {
		return rank, reason, message
	}
	return max(rank, 1), cmp.Or(reason, ReasonVersionsDiffer), c.differs + "; " + message
}
