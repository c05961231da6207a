// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/containers/hook"
	"github.com/kerb-edge/kerb/internal/serve"
)

const (
	hookTimeout  = time.Minute           // timeout of a container's start; its caller may have a shorter one
	eventTimeout = 5 * time.Second       // timeout of the event of its creation
	linkTimeout  = 5 * time.Second       // timeout of its interface, which existed before
	pollInterval = 20 * time.Millisecond // polling interval of both
	maxReport    = 4 << 20               // bytes of a report, most of which are labels
)

// listen serves hooks until the context ends.
func (f *follower) listen(ctx context.Context) error {
	l, err := serve.ListenUnix(f.options.Hook, "")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.answer(ctx, c)
		}
	}()
	return nil
}

func (f *follower) answer(ctx context.Context, c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	_ = c.SetDeadline(time.Now().Add(hookTimeout))
	var start hook.Start
	if json.NewDecoder(io.LimitReader(c, maxReport)).Decode(&start) != nil {
		return
	}
	var answer hook.Answer
	if err := f.start(ctx, start); err != nil {
		answer.Error = err.Error()
		f.log.Warn("container starts without its modules, or not at all", "id", start.ID, "error", err)
	}
	_ = json.NewEncoder(c).Encode(answer) // fails only if the caller has disconnected
}

// start creates the service of a container, and returns when its chains are attached.
func (f *follower) start(ctx context.Context, s hook.Start) error {
	id := s.ID
	if f.options.Runtime == "containerd" {
		namespace := filepath.Base(filepath.Dir(s.Bundle)) // .../io.containerd.runtime.v2.task/NAMESPACE/ID
		if foreignNamespaces[namespace] != "" {
			return nil
		}
		id = namespace + "/" + id
	}
	c := container{ID: id, Name: s.Name}
	c.Config.Labels = s.Labels
	if s.Name == "" {
		var err error
		if c, err = f.described(ctx, id); err != nil {
			return err
		}
	}
	c.State.Running, c.State.Pid, c.NetworkSettings.SandboxKey, c.hook = true, s.PID, s.Netns, true
	c.startTime = startTimeOf(s.PID)
	f.mu.Lock()
	delete(f.known, id) // of an earlier start
	f.hooked[id] = c
	f.mu.Unlock()
	refused, err := f.converge(ctx)
	if err = errors.Join(refused, err); err == nil {
		return f.verify(ctx, c)
	}
	if name, _ := f.serviceOf(c); err == refused && name != "" {
		return f.verify(ctx, c) // the rejected service is another container's
	}
	return err
}

// described waits for the event of a container's creation: the runtime may not respond while a container starts.
func (f *follower) described(ctx context.Context, id string) (container, error) {
	for end := time.Now().Add(eventTimeout); ; {
		f.mu.Lock()
		c, ok := f.existing[id]
		f.mu.Unlock()
		if ok {
			return c, nil
		}
		if time.Now().After(end) {
			return c, fmt.Errorf("%s has not reported container %.80q", f.options.Runtime, id)
		}
		select {
		case <-ctx.Done():
			return c, ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// serviceOf returns the name of a container's service.
func (f *follower) serviceOf(c container) (string, error) {
	f.applying.Lock()
	defer f.applying.Unlock()
	spec, own := specOf(c, f.there)
	at := slices.IndexFunc(f.applied, func(s v1.Service) bool { return s.Spec == spec })
	if !own || at < 0 {
		return "", fmt.Errorf("container %s is no service", c.name())
	}
	return f.applied[at].Metadata.Name, nil
}

// verify waits until the agent has observed the interface of a service. The change that created the service has then
// attached its chains, or failed.
func (f *follower) verify(ctx context.Context, c container) error {
	name, err := f.serviceOf(c)
	if err != nil {
		return err
	}
	for end := time.Now().Add(linkTimeout); ; {
		var s v1.Service
		if err := f.agent.Call(ctx, http.MethodGet, "/v1/services/"+name, nil, &s); err != nil {
			return fmt.Errorf("the agent: %w", err)
		}
		attached := s.Status != nil && slices.ContainsFunc(s.Status.Links, func(l v1.ServiceLink) bool { return !l.Moved })
		if attached {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the agent has found no interface on the node for container %s", c.name())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// dropHooked removes reported containers that have ended.
func (f *follower) dropHooked() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, c := range f.hooked {
		now := startTimeOf(c.State.Pid)
		if errors.Is(unix.Kill(c.State.Pid, 0), unix.ESRCH) || c.startTime != "" && now != "" && now != c.startTime {
			delete(f.hooked, id)
		}
	}
}

// startTimeOf returns the start time of a process in ticks since boot, or "" if it cannot be read.
func startTimeOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ") // a name may have spaces
	if fields := strings.Fields(after); len(fields) > 19 {
		return fields[19] // field 22 of proc_pid_stat(5)
	}
	return ""
}
