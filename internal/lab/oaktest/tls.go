// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Secure is a listener of a broker that demands TLS, a certificate of its CA, and a password.
type Secure struct {
	Port                 int
	CA, Certificate, Key string // PEM files of a client
	Username, Password   string
}

// AddSecure gives the broker a second listener, before it is started.
func (b *Broker) AddSecure() Secure {
	b.t.Helper()
	dir := b.t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	s := Secure{Port: freePort(b.t, "127.0.0.1"), CA: file("ca.pem"), Certificate: file("client.pem"),
		Key: file("client.key"), Username: "worker", Password: "secret"}
	ca, key := b.issue(s.CA, file("ca.key"), nil, nil)
	b.issue(file("server.pem"), file("server.key"), ca, key)
	b.issue(s.Certificate, s.Key, ca, key)
	program, err := exec.LookPath("mosquitto_passwd")
	if err != nil {
		b.t.Skip("needs mosquitto_passwd")
	}
	out, err := exec.Command(program, "-b", "-c", file("passwords"), s.Username, s.Password).CombinedOutput()
	if err != nil {
		b.t.Fatalf("mosquitto_passwd: %v: %s", err, out)
	}
	old, err := os.ReadFile(b.config)
	if err != nil {
		b.t.Fatal(err)
	}
	text := fmt.Sprintf("per_listener_settings true\n%slistener %d 127.0.0.1\nallow_anonymous false\npassword_file %s\n"+
		"cafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate true\n", old, s.Port, file("passwords"), s.CA,
		file("server.pem"), file("server.key"))
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// issue writes a certificate and its key; a CA's if there is no parent.
func (b *Broker) issue(path, keyPath string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate,
	*ecdsa.PrivateKey) {
	b.t.Helper()
	check := func(err error) {
		if err != nil {
			b.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:   pkix.Name{CommonName: filepath.Base(path)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{{127, 0, 0, 1}}}
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid = true, true
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	check(err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	check(err)
	check(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(os.WriteFile(keyPath, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	return c, key
}
