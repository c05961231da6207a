// SPDX-License-Identifier: Apache-2.0

// Package kubeapi runs a Kubernetes API server with its etcd in a network namespace, for tests. The program is
// test/kube, which `make kube-api` builds.
package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
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
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Program is the variable of the environment that names the program.
const Program = "KERB_KUBE_API"

// Server is an API server, which runs until the test ends.
type Server struct {
	URL   string
	Admin *http.Client // a member of system:masters, whose connections start in the server's namespace

	t   *testing.T
	ns  *netlab.Namespace
	dir string
	tls *tls.Config // of the administrator
	cmd *exec.Cmd
}

// Start runs an API server on an address of a namespace, and returns when it is ready. The test is skipped where the
// program was not built.
func Start(t *testing.T, ns *netlab.Namespace, address netip.Addr) *Server {
	t.Helper()
	if os.Getenv(Program) == "" {
		t.Skip("needs a Kubernetes API server: make test-kube-api")
	}
	s := &Server{t: t, ns: ns, dir: t.TempDir(), URL: "https://" + netip.AddrPortFrom(address, 6443).String()}
	var err error
	if s.tls, err = newPKI(s.dir, address); err != nil {
		t.Fatal(err)
	}
	s.Admin = &http.Client{Timeout: wait.Patience, Transport: &http.Transport{
		DialContext: s.dial, TLSClientConfig: s.tls.Clone(), ForceAttemptHTTP2: true}}
	t.Cleanup(func() {
		s.Admin.CloseIdleConnections()
		s.Kill()
		if t.Failed() {
			text, _ := os.ReadFile(s.log())
			t.Logf("the API server said:\n%s", text[max(0, len(text)-8000):])
		}
	})
	s.Run(address)
	return s
}

// Run starts the server of this directory again, after Kill.
func (s *Server) Run(address netip.Addr) {
	s.t.Helper()
	file := func(name string) string { return filepath.Join(s.dir, name) }
	s.cmd = s.ns.Command(context.Background(), os.Getenv(Program), s.dir, "--secure-port=6443", "--bind-address=0.0.0.0",
		"--advertise-address="+address.String(), "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", // no controller creates the default account of a namespace
		"--client-ca-file="+file("ca.crt"), "--tls-cert-file="+file("server.crt"),
		"--tls-private-key-file="+file("server.key"), "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+file("server.key"), "--service-account-signing-key-file="+file("server.key"),
		"--endpoint-reconciler-type=none", "--profiling=false", "--shutdown-delay-duration=0s")
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := sandbox.Start(s.cmd); err != nil { // tests may end the thread that they run on
		s.t.Fatal(err)
	}
	wait.Until(s.t, "the API server is ready", func() bool {
		r, err := s.Admin.Get(s.URL + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, func() any { return s.cmd.ProcessState })
}

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

// Kill ends the server by kill -9.
func (s *Server) Kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// PID is that of the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Hang stops the server's process, which then answers nothing and closes no connection, until Resume.
func (s *Server) Hang() { s.signal(syscall.SIGSTOP) }

// Resume is the reverse of Hang.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	enter := s.ns.Do(func() error {
		conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
		return nil
	})
	if enter != nil {
		return nil, enter
	}
	return conn, err
}

// Refusal is an answer of the server other than success.
type Refusal struct {
	Code    int
	Reason  string
	Message string
}

func (e *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message) }

// Call makes a request as administrator. in may be text, which is YAML of a server-side apply for PATCH, or a value;
// out may be nil.
func (s *Server) Call(method, path string, in, out any) error {
	return s.send(s.Admin, "", method, path, in, out)
}

// CallAs is Call with a token in place of the administrator's certificate.
func (s *Server) CallAs(token, method, path string, in, out any) error {
	plain := s.tls.Clone()
	plain.Certificates = nil
	transport := &http.Transport{DialContext: s.dial, TLSClientConfig: plain, DisableKeepAlives: true}
	return s.send(&http.Client{Timeout: wait.Patience, Transport: transport}, token, method, path, in, out)
}

// send uses plain HTTP rather than client-go: tests see exactly what the server answers, also to requests that no
// library would send.
func (s *Server) send(client *http.Client, token, method, path string, in, out any) error {
	var body []byte
	switch in := in.(type) {
	case nil:
	case string:
		body = []byte(in)
	default:
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	r, err := http.NewRequest(method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		no := &Refusal{Code: answer.StatusCode, Message: string(text)}
		_ = json.Unmarshal(text, no) // a Status object, or text as it is
		return no
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

// Apply is kubectl apply --server-side --force-conflicts of one object at its path.
func (s *Server) Apply(path, text string) error {
	return s.Call(http.MethodPatch, path+"?fieldManager=test&force=true&fieldValidation=Strict", text, nil)
}

// Must is Call that has to succeed.
func (s *Server) Must(method, path string, in, out any) {
	s.t.Helper()
	if err := s.Call(method, path, in, out); err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// Table returns the cells of the first row that kubectl get shows of a collection.
func (s *Server) Table(path string) []any {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodGet, s.URL+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	answer, err := s.Admin.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	var table struct{ Rows []struct{ Cells []any } }
	if err := json.NewDecoder(answer.Body).Decode(&table); err != nil || len(table.Rows) == 0 {
		s.t.Fatalf("table of %s has %d rows: %v", path, len(table.Rows), err)
	}
	return table.Rows[0].Cells
}

// Install applies CustomResourceDefinitions from files, and waits until the server serves them.
func (s *Server) Install(names ...string) {
	s.t.Helper()
	for _, file := range names {
		text, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml") + ".kerb.dev"
		path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + name
		if err := s.Apply(path, string(text)); err != nil {
			s.t.Fatalf("%s: %v", file, err)
		}
		wait.Until(s.t, name+" is served", func() bool { return s.established(path) })
	}
}

func (s *Server) established(path string) bool {
	var crd struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	s.Must(http.MethodGet, path, nil, &crd)
	for _, c := range crd.Status.Conditions {
		if c.Type == "Established" && c.Status == "True" {
			return true
		}
	}
	return false
}
