// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/pki"
)

// write writes a file in a directory.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// startTLS runs a server that answers with what it receives, and returns it with its certificate in PEM.
func startTLS(t *testing.T) (server *httptest.Server, authority string) {
	t.Helper()
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"token":"` + r.Header.Get("Authorization") + `","proto":"` + r.Proto + `"}`))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // clients refuse its certificate
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

func kubeconfigOf(server, cluster, user string) string {
	return "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],\n" +
		"clusters: [{name: c, cluster: {server: '" + server + "', " + cluster + "}}],\n" +
		"users: [{name: u, user: {" + user + "}}]}"
}

type echo struct{ Token, Proto string }

// A token file is read for each request: kubelet replaces it.
func TestTokenIsReadAgain(t *testing.T) {
	server, authority := startTLS(t)
	dir := t.TempDir()
	write(t, dir, "token", "first\n")
	c, err := Load(write(t, dir, "kubeconfig", kubeconfigOf(server.URL, "certificate-authority-data: "+
		base64.StdEncoding.EncodeToString([]byte(authority)), "tokenFile: token")))
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"first", "second"} {
		write(t, dir, "token", token)
		var got echo
		if err := c.Get(context.Background(), "/", &got); err != nil {
			t.Fatal(err)
		}
		if want := (echo{"Bearer " + token, "HTTP/2.0"}); got != want {
			t.Errorf("the server received %v, want %v", got, want)
		}
	}
}

// A redirect is not followed: the token would reach another server.
func TestRedirectIsRefused(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s has received %q", r.Host, r.Header.Get("Authorization"))
	}))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(server.Close)
	c := newClient(server.URL, nil)
	c.token = "secret"
	if err := c.Get(t.Context(), "/", nil); !IsStatus(err, http.StatusTemporaryRedirect) {
		t.Errorf("%v", err)
	}
}

func TestInCluster(t *testing.T) {
	server, authority := startTLS(t)
	dir := t.TempDir()
	write(t, dir, "token", "secret")
	write(t, dir, "ca.crt", authority)
	host, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	c, err := inCluster(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got echo
	if err := c.Get(context.Background(), "/", &got); err != nil || got.Token != "Bearer secret" {
		t.Errorf("the server received %v: %v", got, err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Load(""); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("outside of a pod: %v", err)
	}
}

// A wrong clock of the node is named: the error of the certificate does not say which of the two is wrong.
func TestWrongClock(t *testing.T) {
	server, authority := startTLS(t)
	pool, err := authorities([]byte(authority), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, now := range []time.Time{time.Unix(-1e9, 0), time.Now().AddDate(200, 0, 0)} {
		c := newClient(server.URL, &tls.Config{RootCAs: pool, Time: func() time.Time { return now }})
		err := c.Get(context.Background(), "/", nil)
		if err == nil || !strings.Contains(explain(err).Error(), "the clock of this node is wrong") {
			t.Errorf("at %v: %v", now, explain(err))
		}
	}
}

func TestWrongKubeconfigs(t *testing.T) {
	const server = "https://127.0.0.1:1"
	for text, want := range map[string]string{
		"{": "kubeconfig", "{}": "current-context",
		kubeconfigOf("http://127.0.0.1", "", ""):                     "only https",
		kubeconfigOf(server, "certificate-authority-data: '?'", ""):  "certificate authority of cluster c",
		kubeconfigOf(server, "certificate-authority: none.crt", ""):  "none.crt",
		kubeconfigOf(server, "certificate-authority-data: YQ==", ""): "no certificate in PEM",
		kubeconfigOf(server, "", "client-certificate: none.crt"):     "certificate of user u",
		kubeconfigOf(server, "", "client-certificate-data: YQ==, client-key-data: YQ==")://
		"certificate of user u",
		kubeconfigOf(server, "", "exec: {command: aws}"):                           "use tokenFile",
		strings.Replace(kubeconfigOf(server, "", ""), "name: u", "name: v", 1):     `no user "u"`,
		strings.Replace(kubeconfigOf(server, "", ""), "[{name: c", "[{name: d", 1): `no cluster "c"`,
	} {
		_, err := Load(write(t, t.TempDir(), "kubeconfig", text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Certificates and the kubeconfig itself are read again when they were renewed, on a new connection: the server keeps
// the certificate of the earlier one. While they cannot be used, the earlier ones are.
func TestCertificatesAreReadAgain(t *testing.T) {
	named := func() (*httptest.Server, string) {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, `{"token":%q}`, r.TLS.PeerCertificates[0].Subject.CommonName)
		}))
		server.EnableHTTP2, server.TLS = true, &tls.Config{ClientAuth: tls.RequireAnyClientCert}
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		return server, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	}
	dir := t.TempDir()
	ca, err := pki.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) {
		t.Helper()
		if err := ca.Issue("node", &x509.Certificate{Subject: pkix.Name{CommonName: name},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Fatal(err)
		}
	}
	first, authority := named()
	write(t, dir, "server-ca.crt", authority)
	issue("before")
	const cluster, user = "certificate-authority: server-ca.crt", "client-certificate: node.crt, client-key: node.key"
	config := write(t, dir, "kubeconfig", kubeconfigOf(first.URL, cluster, user))
	c, err := Load(config)
	if err != nil {
		t.Fatal(err)
	}
	want := func(what, name string) {
		t.Helper()
		var got echo
		if err := c.Get(t.Context(), "/", &got); err != nil || got.Token != name {
			t.Errorf("%s: the server knows the node as %q, %v; want %q", what, got.Token, err, name)
		}
	}
	want("at the start", "before")
	issue("after")
	want("with a new certificate", "after")
	write(t, dir, "node.key", "half")
	want("with half a key", "after")
	issue("last")
	want("with all of it", "last")
	second, other := named()
	first.Close()
	write(t, dir, "server-ca.crt", other)
	write(t, dir, "kubeconfig", kubeconfigOf(second.URL, cluster, user))
	want("with another server", "last")
}
