// SPDX-License-Identifier: Apache-2.0

package kubeapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// pki has the certificates of a server and of its clients.
type pki struct {
	dir   string
	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
	admin tls.Certificate
}

const lifetime = 24 * time.Hour

// newPKI writes ca.crt, server.crt, server.key, admin.crt and admin.key.
func newPKI(dir string, address netip.Addr) (*pki, error) {
	p := &pki{dir: dir}
	var err error
	if p.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	if p.ca, err = p.sign("ca", template, template, p.caKey); err != nil {
		return nil, err
	}
	_, serverErr := p.issue("server", &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: []net.IP{address.AsSlice(), {127, 0, 0, 1}, {10, 96, 0, 1}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	p.admin, err = p.issue("admin", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return p, errors.Join(serverErr, err)
}

func (p *pki) issue(name string, template *x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if _, err := p.sign(name, template, p.ca, key); err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	if err := p.write(name+".key", "EC PRIVATE KEY", der); err != nil {
		return tls.Certificate{}, err
	}
	return tls.LoadX509KeyPair(filepath.Join(p.dir, name+".crt"), filepath.Join(p.dir, name+".key"))
}

func (p *pki) sign(name string, template, parent *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	var err error
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, err
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-lifetime), time.Now().Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, p.caKey)
	if err != nil {
		return nil, err
	}
	if err := p.write(name+".crt", "CERTIFICATE", der); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func (p *pki) write(name, kind string, der []byte) error {
	return os.WriteFile(filepath.Join(p.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// client is the TLS of the administrator.
func (p *pki) client() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(p.ca)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{p.admin}}
}

// Kubeconfig writes the configuration of a client: the administrator, or one with the token of a file.
func (s *Server) Kubeconfig(tokenFile string) string {
	s.t.Helper()
	inline := func(name string) string {
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			s.t.Fatal(err)
		}
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
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}
