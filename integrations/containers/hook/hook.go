// SPDX-License-Identifier: Apache-2.0

// Package hook reports a container to the integration with container runtimes after its creation and before its first
// process, and returns when the chains of its modules are attached. It implements kerb containers hook and kerb
// containers runtime, which callers of OCI runtimes execute.
package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Socket is the name of the integration's socket, in the directory of the agent's socket.
const Socket = "containers.sock"

// Start is the request of a hook, as a line of JSON, about a container without a process so far.
type Start struct {
	ID     string `json:"id"`
	PID    int    `json:"pid"`             // of the container's future first process
	Netns  string `json:"netns,omitempty"` // path of the network namespace, if the runtime's caller has created it
	Bundle string `json:"bundle"`          // directory of its OCI configuration
	// From Docker's files, since its API does not respond while Docker itself starts, and starts containers.
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Answer is the response, a line of JSON, when the container may start.
type Answer struct {
	Error string `json:"error,omitempty"` // empty: the chains of its modules are attached
}

// retryInterval is the retry interval while the agent or the integration starts.
const retryInterval = 100 * time.Millisecond

// Report reports the container of an OCI runtime state to the integration of the agent with this socket. Without wait,
// it fails immediately if the integration is not running.
func Report(ctx context.Context, agent string, state []byte, wait bool) error {
	start, own, err := parse(state)
	if err != nil || !own {
		return err
	}
	for socket := filepath.Join(filepath.Dir(agent), Socket); ; {
		err := start.send(ctx, socket)
		var away *net.OpError
		if err == nil || !wait || !errors.As(err, &away) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryInterval):
		}
	}
}

// send returns when the integration has responded. Its error is a *net.OpError if the integration does not run.
func (s Start) send(ctx context.Context, socket string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("kerb does not listen for containers: %w; configure containers: in /etc/kerb/kerb.yaml, and "+
			"systemctl start kerb", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var answer Answer
	if err := errors.Join(json.NewEncoder(c).Encode(s), json.NewDecoder(c).Decode(&answer)); err != nil {
		return &net.OpError{Op: "ask", Net: "unix", Err: errors.Join(context.Cause(ctx), err)}
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}

// parse decodes a state. own is false if the container has no network of its own: it uses that of the node, of another
// container, or only loopback.
func parse(state []byte) (s Start, own bool, err error) {
	if err := json.Unmarshal(state, &s); err != nil {
		return s, false, fmt.Errorf("the container's state: %w", err)
	}
	if s.ID == "" || s.PID <= 0 {
		return s, false, fmt.Errorf("the container's state has no id or process: %.200s", state)
	}
	config, err := readConfig(s.Bundle)
	if err != nil {
		return s, false, err
	}
	if s.Netns = config.networkPath(); strings.HasPrefix(s.Netns, "/proc/") {
		return s, false, nil // in the network of a running container
	}
	s.Name, s.Labels = config.docker(s.ID)
	own, err = hasInterface(s.PID)
	return s, own, err
}

// config has the used fields of the OCI configuration of a container.
type config struct {
	Mounts []struct{ Destination, Source string }
	Linux  struct {
		Namespaces []struct{ Type, Path string }
	}
}

func readConfig(bundle string) (c config, err error) {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s/config.json: %w", bundle, err)
	}
	return c, nil
}

// networkPath returns the path of the network namespace, or "" if the runtime creates it.
func (c config) networkPath() string {
	for _, n := range c.Linux.Namespaces {
		if n.Type == "network" {
			return n.Path
		}
	}
	return ""
}

// docker reads name and labels from Docker's file of a container, which is next to its hostname file. They are empty
// without such a file.
func (c config) docker(id string) (name string, labels map[string]string) {
	for _, m := range c.Mounts {
		dir := filepath.Dir(m.Source)
		if m.Destination != "/etc/hostname" || filepath.Base(dir) != id {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, "config.v2.json"))
		if err != nil {
			return "", nil
		}
		var file struct {
			Name   string
			Config struct{ Labels map[string]string }
		}
		if json.Unmarshal(text, &file) == nil {
			return file.Name, file.Config.Labels
		}
	}
	return "", nil
}

// hasInterface reports whether a process is in a network namespace other than this one's, with an interface other than
// loopback.
func hasInterface(pid int) (bool, error) {
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil || os.SameFile(own, theirs) {
		return false, err
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	for line := range strings.Lines(string(table)) {
		if name, _, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) != "lo" {
			return true, err
		}
	}
	return false, err
}

// commands are the commands of an OCI runtime that its callers use. Any other word is an option, or its value.
var commands = []string{"create", "start", "state", "kill", "delete", "run", "exec", "pause", "resume", "ps", "update",
	"events", "list", "checkpoint", "restore", "spec", "features"}

// State returns the state of the container that a command of an OCI runtime starts, or nil for other commands. All
// callers connect networks between create and start, so that start is the only point at which the network is complete
// and no process runs.
func State(ctx context.Context, runtime string, args []string) ([]byte, error) {
	options, id := startOf(args)
	if id == "" {
		return nil, nil
	}
	cmd := exec.CommandContext(ctx, runtime, slices.Concat(options, []string{"state", id})...)
	var said bytes.Buffer
	cmd.Stderr = &said
	state, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s state: %w: %s", runtime, err, bytes.TrimSpace(said.Bytes()))
	}
	return state, nil
}

// startOf returns the options before the command start, and the id of the container that it starts; empty for another
// command.
func startOf(args []string) (options []string, id string) {
	at := slices.IndexFunc(args, func(arg string) bool { return slices.Contains(commands, arg) })
	if at < 0 || args[at] != "start" || at == len(args)-1 {
		return nil, ""
	}
	return args[:at], args[len(args)-1]
}

// endTimeout is the timeout of the end of a container's process.
const endTimeout = 2 * time.Second

// Refuse kills the container that a command starts, and deletes its state: Docker and containerd do not kill it after a
// failed start, and could not start it again. It returns when the runtime's caller has noticed.
func Refuse(runtime string, args []string, state []byte) error {
	options, id := startOf(args)
	var s Start
	if json.Unmarshal(state, &s) != nil || s.PID <= 0 {
		return nil // the runtime does not know it
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	kill := slices.Concat(options, []string{"kill", id, "KILL"})
	if out, err := exec.CommandContext(ctx, runtime, kill...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s kill: %w: %s", runtime, err, bytes.TrimSpace(out))
	}
	for !errors.Is(syscall.Kill(s.PID, 0), syscall.ESRCH) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d does not end", s.PID)
		case <-time.After(retryInterval / 10):
		}
	}
	return nil
}
