// SPDX-License-Identifier: Apache-2.0

// Package watchtest provides clients for fake API servers in tests.
package watchtest

import (
	"encoding/base64"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// Client serves serve as an API server over TLS until the test ends, and returns a client for it.
func Client(t testing.TB, serve http.Handler) *watch.Client {
	t.Helper()
	server := httptest.NewTLSServer(serve)
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	text := "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], users: [{name: u}], " +
		"clusters: [{name: c, cluster: {server: '" + server.URL + "', certificate-authority-data: " +
		base64.StdEncoding.EncodeToString(authority) + "}}]}"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := watch.Load(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
