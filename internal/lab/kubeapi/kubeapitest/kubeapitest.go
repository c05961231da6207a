// SPDX-License-Identifier: Apache-2.0

// Package kubeapitest provides a Kubernetes API server for the duration of a test.
package kubeapitest

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Server is an API server, which runs until the test ends.
type Server struct {
	*kubeapi.Server
	t *testing.T
}

// Start runs an API server on an address of a namespace, and returns when it is ready. It skips the test if the program
// was not built.
func Start(t *testing.T, ns *netlab.Namespace, address netip.Addr) *Server {
	t.Helper()
	if os.Getenv(kubeapi.Program) == "" {
		t.Skip("needs a Kubernetes API server: make test-kube-api")
	}
	server, err := kubeapi.Start(ns, address, os.Getenv(kubeapi.Program), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		if t.Failed() {
			t.Logf("the API server said:\n%s", server.Log())
		}
	})
	return &Server{server, t}
}

// need fails the test on an error.
func (s *Server) need(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// Run starts the server again, after Kill.
func (s *Server) Run() {
	s.t.Helper()
	s.need(s.Server.Run())
}

// Hang stops the server's process until Resume: it neither responds nor closes connections.
func (s *Server) Hang() {
	s.t.Helper()
	s.need(s.Server.Hang())
}

// Resume continues the process after Hang.
func (s *Server) Resume() {
	s.t.Helper()
	s.need(s.Server.Resume())
}

// Kubeconfig writes the configuration of a client: the administrator, or one with the token of a file.
func (s *Server) Kubeconfig(tokenFile string) string {
	s.t.Helper()
	path, err := s.Server.Kubeconfig(tokenFile)
	s.need(err)
	return path
}

// Must is Call, and fails the test after an error.
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
	s.need(err)
	r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	answer, err := s.Admin.Do(r)
	s.need(err)
	defer answer.Body.Close()
	var table struct{ Rows []struct{ Cells []any } }
	if err := json.NewDecoder(answer.Body).Decode(&table); err != nil || len(table.Rows) == 0 {
		s.t.Fatalf("table of %s has %d rows: %v", path, len(table.Rows), err)
	}
	return table.Rows[0].Cells
}

// Install applies CustomResourceDefinitions from files, and waits until the server serves them.
func (s *Server) Install(files ...string) {
	s.t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		s.need(err)
		s.need(s.Server.Install(string(text)))
	}
}
