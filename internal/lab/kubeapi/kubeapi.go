// SPDX-License-Identifier: Apache-2.0

// Package kubeapi runs a Kubernetes API server with etcd in a network namespace, for tests and benchmarks. `make
// kube-api` builds its program, test/kube.
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
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Program is the environment variable with the path of the program.
const Program = "KERB_KUBE_API"

// Loopback is the usual address of a server.
var Loopback = netip.MustParseAddr("127.0.0.1")

// patience is the timeout of the server's start, and of its responses, on a busy machine.
const patience = time.Minute

// Server is an API server with its etcd.
type Server struct {
	URL   string
	Admin *http.Client // a member of system:masters, whose connections start in the server's namespace

	program string
	address netip.Addr
	ns      *netlab.Namespace
	dir     string
	tls     *tls.Config // of the administrator
	cmd     *exec.Cmd
	written int // number of kubeconfig files
}

// Start runs an API server on an address of a namespace, with its files in a directory, and returns when it is ready.
func Start(ns *netlab.Namespace, address netip.Addr, program, dir string) (*Server, error) {
	s := &Server{URL: "https://" + netip.AddrPortFrom(address, 6443).String(), program: program, address: address,
		ns: ns, dir: dir}
	var err error
	if s.tls, err = newPKI(s.dir, address); err != nil {
		return nil, err
	}
	s.Admin = s.Client()
	s.Admin.Timeout = patience
	if err := s.Run(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Client returns an administrator's client with separate connections and without timeouts.
func (s *Server) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: s.dial, TLSClientConfig: s.tls.Clone(),
		ForceAttemptHTTP2: true}}
}

// Run starts the server of this directory again, after Kill.
func (s *Server) Run() error {
	file := func(name string) string { return filepath.Join(s.dir, name) }
	s.cmd = s.ns.Command(context.Background(), s.program, s.dir, "--secure-port=6443", "--bind-address=0.0.0.0",
		"--advertise-address="+s.address.String(), "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", // no controller creates the default account of a namespace
		"--client-ca-file="+file("ca.crt"), "--tls-cert-file="+file("server.crt"),
		"--tls-private-key-file="+file("server.key"), "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+file("server.key"), "--service-account-signing-key-file="+file("server.key"),
		"--endpoint-reconciler-type=none", "--profiling=false", "--shutdown-delay-duration=0s")
	log, err := os.OpenFile(file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := sandbox.Start(s.cmd); err != nil { // survives the end of the test's thread
		s.cmd = nil
		return err
	}
	return Await("the API server is ready", func() bool {
		r, err := s.Admin.Get(s.URL + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, s.Log)
}

// Await polls ok until it returns true. After a minute, it returns an error with the result of seen.
func Await(what string, ok func() bool, seen ...func() string) error {
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().Before(end) {
			continue
		}
		text := ""
		for _, see := range seen {
			text += "\n" + see()
		}
		return fmt.Errorf("waited %v, and still not: %s%s", patience, what, text)
	}
	return nil
}

// Log returns the end of the server's log.
func (s *Server) Log() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return string(text[max(0, len(text)-8000):])
}

// Close stops the server. Its directory remains.
func (s *Server) Close() {
	s.Admin.CloseIdleConnections()
	s.Kill()
}

// Kill kills the server with SIGKILL.
func (s *Server) Kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// PID returns the id of the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Hang stops the server's process until Resume: it neither responds nor closes connections.
func (s *Server) Hang() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues the process after Hang.
func (s *Server) Resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

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

// Refusal is an error response of the server.
type Refusal struct {
	Code    int
	Reason  string
	Message string
}

func (e *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message) }

// Call makes a request as administrator. in may be a string, which is YAML of a server-side apply for PATCH, or a value
// to encode; out may be nil.
func (s *Server) Call(method, path string, in, out any) error {
	return s.send(s.Admin, "", method, path, in, out)
}

// CallAs is Call with a token instead of the administrator's certificate.
func (s *Server) CallAs(token, method, path string, in, out any) error {
	plain := s.tls.Clone()
	plain.Certificates = nil
	transport := &http.Transport{DialContext: s.dial, TLSClientConfig: plain, DisableKeepAlives: true}
	return s.send(&http.Client{Timeout: patience, Transport: transport}, token, method, path, in, out)
}

// send uses plain HTTP rather than client-go: tests get the server's exact responses, also to requests that no library
// would send.
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
		_ = json.Unmarshal(text, no) // a Status object, or plain text
		return no
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

// Apply does kubectl apply --server-side --force-conflicts of one object at its path.
func (s *Server) Apply(path, text string) error {
	return s.Call(http.MethodPatch, path+"?fieldManager=test&force=true&fieldValidation=Strict", text, nil)
}

// Install applies a CustomResourceDefinition, and waits until the server serves it.
func (s *Server) Install(definition string) error {
	var crd struct {
		Metadata struct{ Name string }
		Spec     struct {
			Group    string
			Names    struct{ Plural string }
			Versions []struct{ Name string }
		}
	}
	if err := yaml.Unmarshal([]byte(definition), &crd); err != nil {
		return err
	}
	name, of := crd.Metadata.Name, crd.Spec
	path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + name
	if err := s.Apply(path, definition); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	// For a moment, requests may still be answered with 429: storage is (re)initializing.
	return Await(name+" is served", func() bool {
		return s.established(path) && len(of.Versions) > 0 &&
			s.Call(http.MethodGet, "/apis/"+of.Group+"/"+of.Versions[0].Name+"/"+of.Names.Plural, nil, nil) == nil
	})
}

func (s *Server) established(path string) bool {
	var crd struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if s.Call(http.MethodGet, path, nil, &crd) != nil {
		return false
	}
	for _, c := range crd.Status.Conditions {
		if c.Type == "Established" && c.Status == "True" {
			return true
		}
	}
	return false
}
