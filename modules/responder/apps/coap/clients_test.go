// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	apiclient "github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Third-party clients with the module on a real path, native XDP and TC: libcoap's, and aiocoap (out/aiocoap, which
// scripts/setup installs). libcoap's server has the same port behind the module, with different values.

const labPrefix = "kcoap"

// site is a node with an agent, a client, and a server in front of which the module answers.
type site struct {
	t       *testing.T
	client  *netlab.Host
	kerb    string // the binary
	dir     string
	addrs   []netip.Addr // of the server
	running *http.Client // of the agent's API
	// padding is the value of an elective option that makes requests as long as their replies: packets that a veth passes
	// to XDP have almost no tailroom, and requests whose reply does not fit pass to the server.
	padding string
}

func newSite(t *testing.T, hook string) *site {
	t.Helper()
	for _, program := range []string{"coap-client-notls", "coap-server-notls", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil || os.Geteuid() != 0 {
			t.Skipf("needs root and %s (scripts/setup test)", program)
		}
	}
	lab, err := netlab.NewIn(labPrefix)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", labPrefix)
	if err == nil {
		err = os.Chmod(dir, 0o711) // control planes run as other users
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: dir, kerb: filepath.Join(dir, "kerb")}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command(s.kerb, append([]string{"purge"}, s.flags()...)...).CombinedOutput(); err != nil {
			t.Errorf("purge: %v\n%s", err, out)
		}
		os.RemoveAll(dir)
	})
	if err := gobuild.Build(s.kerb, "github.com/kerb-edge/kerb/cmd/kerb"); err != nil {
		t.Fatal(err)
	}
	if s.client, err = lab.Host("client", netlab.HostOptions{}); err != nil {
		t.Fatal(err)
	}
	if hook == "xdp" {
		s.receiveXDP()
		s.padding = strings.Repeat("p", 90)
	}
	at := map[string]any{"interfaces": []string{s.client.Outer()}}
	serving := lab.Node()
	s.addrs = []netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("fd99::1")}
	if hook == "tc" {
		server, err := lab.Host("server", netlab.HostOptions{})
		if err != nil {
			t.Fatal(err)
		}
		serving, s.addrs = server.Namespace, []netip.Addr{server.Addr4(), server.Addr6()}
		at = map[string]any{"services": "app=server"}
	}
	s.background(serving.Command(t.Context(), "coap-server-notls", "-d", "10", "-v", "0"))
	s.start(lab)
	s.apply(serving, hook, at)
	return s
}

func (s *site) flags() []string {
	return []string{"--state", filepath.Join(s.dir, "state"), "--run", filepath.Join(s.dir, "run"), "--bpf",
		"/sys/fs/bpf/" + labPrefix, "--config", os.DevNull}
}

// background runs a program until the test ends.
func (s *site) background(cmd *exec.Cmd) {
	s.t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("%s: %s", cmd.Args[3], out.String())
		}
	})
}

// receiveXDP makes the client's end of the veth accept frames of XDP_TX, for which it needs an XDP program.
func (s *site) receiveXDP() {
	s.t.Helper()
	err := s.client.Do(func() error {
		eth0, err := net.InterfaceByName(s.client.Interface())
		if err != nil {
			return err
		}
		pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Dual BSD/GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
		if err != nil {
			return err
		}
		defer pass.Close()
		l, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: eth0.Index, Flags: link.XDPDriverMode})
		if err == nil {
			s.t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) start(lab *netlab.Lab) {
	s.t.Helper()
	s.background(lab.Node().Command(context.Background(), s.kerb, append([]string{"agent"}, s.flags()...)...))
	socket := filepath.Join(s.dir, "run", "kerb.sock")
	s.running = &http.Client{Transport: apiclient.Unix(socket)}
	wait.Until(s.t, "the agent answers", func() bool {
		_, err := s.running.Get("http://kerb/v1/status")
		return err == nil
	})
}

// apply applies the service and the module, and waits until requests are answered.
func (s *site) apply(serving *netlab.Namespace, hook string, at map[string]any) {
	s.t.Helper()
	resource := func(kind, name string, spec any) map[string]any {
		return map[string]any{"apiVersion": "kerb.dev/v1alpha1", "kind": kind, "spec": spec,
			"metadata": map[string]any{"name": name, "labels": map[string]string{"app": name}}}
	}
	all := []any{resource("Module", "things", map[string]any{"package": "responder", "hook": hook, "attach": at,
		"config": map[string]any{
			"listeners": []any{map[string]any{"app": "coap", "name": "coap", "port": port, "addresses": s.addrs, "sourceRate": 0,
				"hosts": []string{"sensor.example"},
				"resources": []any{
					map[string]any{"path": "sensors/temp", "contentFormat": "application/json", "maxAge": "30s"},
					map[string]any{"path": "long", "value": strings.Repeat("0123456789abcdef", 64)},
				}}},
		}})}
	if hook == "tc" {
		all = append(all, resource("Service", "server", map[string]any{"netns": serving.Path()}))
	}
	text, err := json.Marshal(all)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(s.kerb, "apply", "-f", "-")
	cmd.Env = append(os.Environ(), "KERB_SOCKET="+filepath.Join(s.dir, "run", "kerb.sock"))
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("apply: %v\n%s", err, out)
	}
	wait.Until(s.t, "the module serves its routes", func() bool { return s.try("GET", "values", "") == nil })
}

func (s *site) try(method, route, body string) error {
	req, err := http.NewRequest(method, "http://kerb/v1/modules/things/"+route, strings.NewReader(body))
	if err != nil {
		return err
	}
	res, err := s.running.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		text, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%s %s: %s %s", method, route, res.Status, text)
	}
	return nil
}

// answered returns the number of requests that the kernel has answered, including challenges.
func (s *site) answered() (n uint64) {
	s.t.Helper()
	res, err := s.running.Get("http://kerb/v1/modules/things/listeners")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var report any
	if err := json.NewDecoder(res.Body).Decode(&report); err != nil {
		s.t.Fatal(err)
	}
	walk(report, func(key string, value any) {
		if v, ok := value.(float64); ok && (key == "answered" || key == "challenged") {
			n += uint64(v)
		}
	})
	return n
}

func walk(v any, visit func(string, any)) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			visit(key, value)
			walk(value, visit)
		}
	case []any:
		for _, value := range v {
			walk(value, visit)
		}
	}
}

func hostOf(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// libcoap runs libcoap's client in the client's namespace; its log of messages is part of the result.
func (s *site) libcoap(addr netip.Addr, path string, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	if s.padding != "" {
		args = append(args, "-O", "2048,"+s.padding)
	}
	out, err := s.client.Command(ctx, "coap-client-notls", append(append([]string{"-v", "6", "-B", "30"}, args...),
		"coap://"+hostOf(addr)+"/"+path)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("coap-client %v %s: %v\n%s", args, path, err, out)
	}
	return string(out)
}

func TestClients(t *testing.T) {
	for _, hook := range []string{"tc", "xdp"} {
		t.Run(hook, func(t *testing.T) {
			s := newSite(t, hook)
			etag := fmt.Sprintf("%x", newValue([]byte(`{"v":21.5}`), 50, 30, 0).ETag)
			s.libcoap(s.addrs[0], "sensors/temp", "-m", "put", "-e", "of the server")
			s.expect("the server in user space", "sensors/temp", false, []string{"of the server"}, "")
			if err := s.try("PUT", "values/coap/sensors/temp", `{"value": "{\"v\":21.5}"}`); err != nil {
				t.Fatal(err)
			}
			content := []string{"c:2.05", `{"v":21.5}`, "application/json", "Max-Age:30"}
			s.expect("confirmable", "sensors/temp", true, append(content, "t:ACK"), "")
			s.expect("non-confirmable", "sensors/temp", true, append(content, "t:NON"), "-N")
			s.expect("token", "sensors/temp", true, content, "-T", "12345678")
			s.expect("accept", "sensors/temp", true, content, "-A", "50")
			s.expect("block", "sensors/temp", true, content, "-b", "64")
			s.expect("etag", "sensors/temp", true, []string{"c:2.03"}, "-O", "4,0x"+etag)
			s.expect("host", "sensors/temp", true, content, "-O", "3,sensor.example")
			s.expect("elective option", "sensors/temp", true, content, "-O", "2048,x")
			if hook == "tc" {
				// The client is challenged (4.01 with Echo), and repeats the request automatically.
				s.expect("1024 bytes", "long", true, []string{strings.Repeat("0123456789abcdef", 64)}, "")
			}
			s.expect("accept another format", "sensors/temp", false, []string{"of the server"}, "-A", "0")
			s.expect("query", "sensors/temp?a=b", false, []string{"of the server"}, "")
			s.expect("another host", "sensors/temp", false, []string{"of the server"}, "-O", "3,other.example")
			s.expect("blocks of a long value", "long", false, []string{"4.04"}, "-b", "16")
			s.expect("unknown resource", "missing", false, []string{"4.04"}, "")
			s.expect("discovery", ".well-known/core", false, []string{"</time>"}, "")
			s.expect("observe", "time", false, []string{"Observe:"}, "-s", "1")
			s.expect("delete", "sensors/temp", false, []string{"2.02"}, "-m", "delete")
			s.expect("the kernel after that", "sensors/temp", true, content, "")
			s.aiocoap()
			if err := s.try("PUT", "values/coap/sensors/temp", `{"value": null}`); err != nil {
				t.Fatal(err)
			}
			s.expect("the server again", "sensors/temp", false, []string{"4.04"}, "")
		})
	}
}

// expect sends a request of libcoap's client to both addresses, and checks the response, and whether the kernel
// answered.
func (s *site) expect(name, path string, kernel bool, says []string, args ...string) {
	s.t.Helper()
	if args[0] == "" {
		args = nil
	}
	for _, addr := range s.addrs {
		before := s.answered()
		out := s.libcoap(addr, path, args...)
		for _, text := range says {
			if !strings.Contains(out, text) {
				s.t.Errorf("%s, %v: no %q in\n%s", name, addr, text, out)
			}
		}
		if got := s.answered() - before; (got > 0) != kernel {
			s.t.Errorf("%s, %v: %d answers of the kernel", name, addr, got)
		}
	}
}

// aiocoap runs testdata/aiocoap_client.py, which checks each answer, and compares its number of answers with the
// kernel's.
func (s *site) aiocoap() {
	s.t.Helper()
	python := "../../../../out/aiocoap/bin/python"
	if _, err := os.Stat(python); err != nil {
		s.t.Log("without aiocoap: scripts/setup test")
		return
	}
	for _, addr := range s.addrs {
		before := s.answered()
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
		out, err := s.client.Command(ctx, python, "testdata/aiocoap_client.py", hostOf(addr), s.padding).CombinedOutput()
		cancel()
		if err != nil {
			s.t.Errorf("aiocoap: %v\n%s", err, out)
			continue
		}
		var kernel uint64
		if _, err := fmt.Sscanf(string(out), "%d", &kernel); err != nil || s.answered()-before != kernel {
			s.t.Errorf("aiocoap had %s answers, the kernel gave %d", out, s.answered()-before)
		}
	}
}
