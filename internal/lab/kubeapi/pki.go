// SPDX-License-Identifier: Apache-2.0

package kubeapi

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/internal/lab/pki"
)

// newPKI writes ca.crt, server.crt, server.key, admin.crt and admin.key, and returns the TLS of the administrator.
func newPKI(dir string, address netip.Addr) (*tls.Config, error) {
	ca, err := pki.New(dir)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		ca.Issue("server", &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"},
			IPAddresses: []net.IP{address.AsSlice(), {127, 0, 0, 1}, {10, 96, 0, 1}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
		ca.Issue("admin", &x509.Certificate{
			Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}))
	if err != nil {
		return nil, err
	}
	admin, err := tls.LoadX509KeyPair(filepath.Join(dir, "admin.crt"), filepath.Join(dir, "admin.key"))
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{admin}}, err
}

// Kubeconfig writes the configuration of a client, the administrator or one with the token of a file, into the server's
// directory, and returns its path.
func (s *Server) Kubeconfig(tokenFile string) (string, error) {
	var failed error
	inline := func(name string) string {
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		failed = errors.Join(failed, err)
		return base64.StdEncoding.EncodeToString(text)
	}
	user := fmt.Sprintf("client-certificate-data: %s, client-key-data: %s", inline("admin.crt"), inline("admin.key"))
	if tokenFile != "" {
		user = "tokenFile: " + tokenFile
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: test, user: {%s}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
`, s.URL, inline("ca.crt"), user)
	s.written++
	path := filepath.Join(s.dir, fmt.Sprint("kubeconfig", s.written))
	return path, errors.Join(failed, os.WriteFile(path, []byte(text), 0o600))
}
