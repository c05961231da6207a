// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// process is a control plane, started by hand as in docs/control-planes.md.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	maps   *os.File // the agent's end of the socket for maps
	client *http.Client
	done   chan error
}

// startProcess starts the control plane of a package built in its directory.
func startProcess(t *testing.T, p *pkgs.Package, dir string) *process {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: sock, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	listener, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "theirs")
	defer theirs.Close()
	pr := &process{t: t, maps: os.NewFile(uintptr(pair[0]), "maps"), done: make(chan error, 1)}
	pr.cmd = exec.Command(p.Control.Command[0], p.Control.Command[1:]...)
	pr.cmd.Dir, pr.cmd.Stderr, pr.cmd.Stdout = dir, t.Output(), t.Output()
	pr.cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "KERB_CONTRACT=1", "PYTHONDONTWRITEBYTECODE=1"}
	pr.cmd.ExtraFiles = []*os.File{listener, theirs}
	pr.client = &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", sock)
		}}}
	if err := pr.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { pr.done <- pr.cmd.Wait() }()
	t.Cleanup(pr.stop)
	return pr
}

// stop ends the process by closing the socket for maps, as when the agent exits.
func (p *process) stop() {
	p.client.CloseIdleConnections()
	p.maps.Close()
	select {
	case err := <-p.done:
		if err != nil {
			p.t.Errorf("the control plane ended badly when the agent was gone: %v", err)
		}
	case <-time.After(30 * time.Second):
		p.t.Error("the control plane stays when the agent is gone")
		p.cmd.Process.Kill()
	}
}

// call sends a request, decodes the answer into out unless it is nil, and returns the status.
func (p *process) call(method, path string, body, out any) int {
	p.t.Helper()
	text := []byte(nil)
	if body != nil {
		text, _ = json.Marshal(body)
	}
	req, err := http.NewRequest(method, "http://control"+path, bytes.NewReader(text))
	if err != nil {
		p.t.Fatal(err)
	}
	res, err := p.client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			p.t.Fatalf("%s %s: %d %q: %v", method, path, res.StatusCode, answer, err)
		}
	}
	return res.StatusCode
}

// must sends a POST that must succeed.
func (p *process) must(name string, body, out any) {
	p.t.Helper()
	if status := p.call("POST", sdk.PathPrefix+name, body, out); status != 200 && status != 204 {
		p.t.Fatalf("%s: status %d", name, status)
	}
}

// send passes the maps of a map set.
func (p *process) send(mapSet string, m sdk.Maps) error {
	msg := sdk.MapsMessage{MapSet: mapSet, Maps: slices.Sorted(maps.Keys(m))}
	var fds []int
	for _, name := range msg.Maps {
		fds = append(fds, m[name].FD())
	}
	text, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	return unix.Sendmsg(int(p.maps.Fd()), text, unix.UnixRights(fds...), nil, 0)
}

// fill returns the function that fills a map set by the control plane process.
func (p *process) fill(mapSet, config string) func(sdk.Maps) error {
	return func(m sdk.Maps) error {
		if err := p.send(mapSet, m); err != nil {
			return err
		}
		if status := p.call("POST", sdk.PathPrefix+"fill", request(mapSet, config), nil); status != 204 {
			return fmt.Errorf("fill: status %d", status)
		}
		return nil
	}
}

func request(mapSet, config string) sdk.MapSetRequest {
	return sdk.MapSetRequest{MapSet: mapSet, Config: json.RawMessage(config)}
}
