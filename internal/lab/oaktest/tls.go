// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kerb-edge/kerb/internal/lab/pki"
)

// Secure is a listener of a broker that requires TLS, a client certificate of its CA, and a password.
type Secure struct {
	Port                 int
	CA, Certificate, Key string // PEM files of a client
	Username, Password   string
}

// AddSecure adds a second listener to the broker, which must not be started yet.
func (b *Broker) AddSecure() Secure {
	b.t.Helper()
	dir := b.t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	s := Secure{Port: freePort(b.t, "127.0.0.1"), CA: file("ca.crt"), Certificate: file("client.crt"),
		Key: file("client.key"), Username: "worker", Password: "secret"}
	ca, err := pki.New(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	here := []net.IP{{127, 0, 0, 1}}
	if err := errors.Join(ca.Issue("server", &x509.Certificate{IPAddresses: here}),
		ca.Issue("client", &x509.Certificate{Subject: pkix.Name{CommonName: "client"}})); err != nil {
		b.t.Fatal(err)
	}
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
		file("server.crt"), file("server.key"))
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return s
}
