// SPDX-License-Identifier: Apache-2.0

// Package pki creates certificate authorities and certificates for tests.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

const lifetime = 24 * time.Hour

// Authority signs certificates. It writes them and their keys to a directory, in PEM.
type Authority struct {
	Certificate *x509.Certificate
	dir         string
	key         *ecdsa.PrivateKey
}

// New creates an authority, with its certificate in the file ca.crt.
func New(dir string) (*Authority, error) {
	a := &Authority{dir: dir}
	own := &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	return a, a.Issue("ca", own)
}

// Issue writes NAME.crt and NAME.key. The first certificate is the authority's own.
func (a *Authority) Issue(name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if a.Certificate == nil {
		a.Certificate, a.key = template, key
	} else {
		template.KeyUsage = x509.KeyUsageDigitalSignature
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-lifetime), time.Now().Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	if template == a.Certificate {
		if a.Certificate, err = x509.ParseCertificate(der); err != nil {
			return err
		}
	}
	secret, err := x509.MarshalECPrivateKey(key)
	return errors.Join(err, a.write(name+".crt", "CERTIFICATE", der), a.write(name+".key", "EC PRIVATE KEY", secret))
}

func (a *Authority) write(name, kind string, der []byte) error {
	return os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
