// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only start requests the state, with the options before it.
func TestState(t *testing.T) {
	runtime := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(runtime, []byte("#!/bin/sh\necho \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--root /run/runc --log-format json start web": "--root /run/runc --log-format json state web",
		"start web": "state web",
		"--root /run/start create --bundle /b start": "",
		"exec web start x":                           "",
		"start":                                      "",
		"--version":                                  "",
		"":                                           "",
		"--log /x/log.json --systemd-cgroup delete start": "",
	} {
		got, err := State(t.Context(), runtime, strings.Fields(args))
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: %q %v, want %q", args, got, err, want)
		}
	}
	if _, err := State(t.Context(), "false", []string{"start", "web"}); err == nil {
		t.Error("a runtime that fails has a state")
	}
}

// An invalid state is an error; containers in the network of another one or of the node are not reported.
func TestParse(t *testing.T) {
	bundle := t.TempDir()
	state := func(path string) []byte {
		config := fmt.Sprintf(`{"linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": %q}]}}`, path)
		if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Appendf(nil, `{"id": "web", "pid": %d, "bundle": %q}`, os.Getpid(), bundle)
	}
	for _, path := range []string{"", "/proc/1/ns/net"} {
		if _, own, err := parse(state(path)); own || err != nil {
			t.Errorf("path %q: %v, %v", path, own, err)
		}
	}
	for _, text := range []string{"", "{", "{}", `{"id": "x"}`, `{"id": "x", "pid": 1, "bundle": "/nowhere"}`,
		`{"id": "x", "pid": -1}`} {
		if _, _, err := parse([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// Name and labels come from Docker's file, next to the hostname that it mounts, and from no mount of the user.
func TestDockersFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "0123")
	err := os.Mkdir(dir, 0o700)
	file := `{"Name": "/web", "Config": {"Labels": {"app": "web"}}}`
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.v2.json"), []byte(file), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ id, destination, name string }{{"0123", "/etc/hostname", "/web"}, {"0123", "/data", ""},
		{"4567", "/etc/hostname", ""}} {
		var read config
		text := fmt.Sprintf(`{"mounts": [{"destination": %q, "source": "%s/x"}]}`, c.destination, dir)
		if err := json.Unmarshal([]byte(text), &read); err != nil {
			t.Fatal(err)
		}
		if name, labels := read.docker(c.id); name != c.name || (labels["app"] == "web") != (name != "") {
			t.Errorf("%+v: %q %v", c, name, labels)
		}
	}
}

// Send returns the integration's response; without wait, it fails immediately if the integration does not run.
func TestSend(t *testing.T) {
	socket := filepath.Join(t.TempDir(), Socket)
	s := Start{ID: "web", PID: 1}
	if err := s.send(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "systemctl start kerb") {
		t.Errorf("without the integration: %v", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answers := []string{`{}`, `{"error": "no"}`, ``}
	go func() {
		for _, answer := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var got Start
			if json.NewDecoder(c).Decode(&got) != nil || got.ID != s.ID || got.PID != s.PID {
				answer = fmt.Sprintf(`{"error": "got %v"}`, got)
			}
			fmt.Fprint(c, answer)
			c.Close()
		}
	}()
	for i, want := range []string{"<nil>", "no", "EOF"} {
		if got := fmt.Sprint(s.send(t.Context(), socket)); !strings.HasSuffix(got, want) {
			t.Errorf("answer %q: %s", answers[i], got)
		}
	}
}
