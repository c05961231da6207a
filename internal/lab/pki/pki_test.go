// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
)

// Certificates of an authority are valid with its CA certificate, but not with that of another one; certificate and key
// files match.
func TestIssue(t *testing.T) {
	dir := t.TempDir()
	ca, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Issue("server", &x509.Certificate{DNSNames: []string{"server.test"}}); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		by   *Authority
		want bool
	}{{ca, true}, {other, false}} {
		pool := x509.NewCertPool()
		pool.AddCert(tc.by.Certificate)
		_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "server.test"})
		if (err == nil) != tc.want {
			t.Errorf("valid: %v, want %v: %v", err == nil, tc.want, err)
		}
	}
}
