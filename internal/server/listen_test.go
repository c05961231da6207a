// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/serve"
	"github.com/kerb-edge/kerb/internal/server"
)

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "kerb.sock")
	l := listen(t, path)
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
	var conflict *apierrors.Conflict
	if _, err := serve.ListenUnix(path, ""); !errors.As(err, &conflict) ||
		!strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent: %v", err)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kerb.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	listen(t, path)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestSomethingElseIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kerb.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	var conflict *apierrors.Conflict
	if _, err := serve.ListenUnix(path, ""); !errors.As(err, &conflict) || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("got %v", err)
	}
	if data, err := os.ReadFile(path); string(data) != "precious" {
		t.Errorf("%q %v", data, err)
	}
}

func TestSocketPathTooLong(t *testing.T) {
	var invalid *apierrors.Invalid
	if _, err := serve.ListenUnix(filepath.Join(t.TempDir(), strings.Repeat("x", 100), "s"), ""); !errors.As(err,
		&invalid) {
		t.Errorf("got %v", err)
	}
}

func TestNewerSocketIsNotRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kerb.sock")
	old := listen(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	listen(t, path)
	old.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the newer socket is gone: %v", err)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kerb.sock")
	endpoints, err := server.Listen(config.Config{Paths: pathsIn(path)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := newServer(t)
	go func() { done <- s.Serve(ctx, endpoints...) }()
	if err := client.New(path).Call(ctx, http.MethodGet, "/healthz", nil, nil); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestServeThatEndsAtOnceRemovesTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kerb.sock")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newServer(t)
	for range 50 {
		endpoints, err := server.Listen(config.Config{Paths: pathsIn(path)})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Serve(ctx, endpoints...); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the socket is still there: %v", err)
		}
	}
}

func TestTCPNeedsProtection(t *testing.T) {
	files := certificates(t)
	open := config.TCP{Address: "127.0.0.1:0", Certificate: files.cert, Key: files.key}
	short, public := open, open
	short.TokenFile = write(t, "short", 0o600)
	public.TokenFile = write(t, "a-token-that-is-long-enough", 0o644)
	nothing := open
	nothing.Certificate, nothing.TokenFile = "/nowhere", write(t, "a-token-that-is-long-enough", 0o600)
	for name, c := range map[string]config.TCP{"open": open, "short token": short, "public token": public,
		"no certificate": nothing} {
		var invalid *apierrors.Invalid
		if e, err := serve.ListenTCP(c); !errors.As(err, &invalid) {
			t.Errorf("%s: listens on %v, %v", name, e, err)
		}
	}
}

// A token for metrics alone may be read by the group of a program that is not root's, as in a pod. No other token may,
// and root's may not.
func TestTokenOfGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	const id = 65532
	files := certificates(t)
	token := write(t, "a-token-that-is-long-enough", 0o640)
	own := func(path string, uid, gid int, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.Chown(path, uid, gid), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	own(filepath.Dir(t.TempDir()), 0, 0, 0o755)
	own(files.cert, id, id, 0o600)
	own(files.key, id, id, 0o600)
	c := config.TCP{Address: "127.0.0.1:0", Certificate: files.cert, Key: files.key}
	all, metrics := c, c
	all.TokenFile, metrics.MetricsTokenFile = token, token
	check := func(uid int, c config.TCP) (err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // and no unlock: the thread, which is another user's, ends with the goroutine
			for _, call := range []uintptr{syscall.SYS_SETRESGID, syscall.SYS_SETRESUID} {
				if _, _, e := syscall.RawSyscall(call, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
					err = e
					return
				}
			}
			err = serve.CheckTCP(c)
		}()
		<-done
		return err
	}
	for _, at := range []struct {
		what     string
		uid, gid int
		mode     os.FileMode
		config   config.TCP
		accepted bool
	}{
		{"metrics", id, id, 0o640, metrics, true},
		{"metrics, writable", id, id, 0o660, metrics, false},
		{"metrics, of another group", id, id + 1, 0o640, metrics, false},
		{"all", id, id, 0o640, all, false},
		{"metrics, as root", 0, 0, 0o640, metrics, false},
		{"all, as root", 0, 0, 0o640, all, false},
	} {
		own(token, at.uid, at.gid, at.mode)
		if err := check(at.uid, at.config); (err == nil) != at.accepted {
			t.Errorf("%s: %v", at.what, err)
		}
	}
}

func TestTCPWithTokenAndCertificate(t *testing.T) {
	files := certificates(t)
	endpoint, err := serve.ListenTCP(config.TCP{
		Address: "127.0.0.1:0", Certificate: files.cert, Key: files.key, ClientCA: files.cert,
		TokenFile: write(t, "a-token-that-is-long-enough\n", 0o600),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := newServer(t)
	go func() { done <- s.Serve(ctx, endpoint) }()
	for _, c := range []struct {
		token string
		certs []tls.Certificate
		want  int // 0: no connection
	}{
		{"a-token-that-is-long-enough", files.pair, 200},
		{"a-token-that-is-long-enougH", files.pair, 401},
		{"", files.pair, 401},
		{"a-token-that-is-long-enough", nil, 0},
	} {
		for _, path := range []string{"/healthz", "/v1/changes", "/v1/history", "/v1/history?follow=true"} {
			if got := statusOf(path, endpoint.Addr().String(), c.token, files.pool, c.certs); got != c.want {
				t.Errorf("%s, token %q, %d certificates: %d, want %d", path, c.token, len(c.certs), got, c.want)
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The token of a scraper reads metrics. It changes nothing, reads nothing else, and does not stand for a certificate.
func TestMetricsToken(t *testing.T) {
	const scraper, admin = "token-of-a-scraper", "token-of-an-operator"
	files := certificates(t)
	write := func(token string) string { return write(t, token, 0o600) }
	same := config.TCP{Address: "127.0.0.1:0", Certificate: files.cert, Key: files.key, TokenFile: write(admin),
		MetricsTokenFile: write(admin)}
	var invalid *apierrors.Invalid
	if e, err := serve.ListenTCP(same); !errors.As(err, &invalid) || invalid.Field != "tcp.metricsTokenFile" {
		t.Errorf("one token for both: listens on %v, %v", e, err)
	}
	for name, c := range map[string]struct {
		config         config.TCP
		certs          []tls.Certificate
		scraper, admin int // status of other paths than /metrics
		none           int // status of all without a token; 0: no connection
	}{
		"alone":                   {config.TCP{}, nil, 403, 401, 401},
		"with token":              {config.TCP{TokenFile: write(admin)}, nil, 403, 200, 401},
		"with certificate":        {config.TCP{ClientCA: files.cert}, files.pair, 200, 200, 200},
		"without its certificate": {config.TCP{ClientCA: files.cert}, nil, 0, 0, 0},
		"with both":               {config.TCP{ClientCA: files.cert, TokenFile: write(admin)}, files.pair, 403, 200, 401},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Address, c.config.Certificate, c.config.Key = "127.0.0.1:0", files.cert, files.key
			c.config.MetricsTokenFile = write(scraper)
			endpoint, err := serve.ListenTCP(c.config)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			s := newServer(t)
			go func() { done <- s.Serve(ctx, endpoint) }()
			for _, path := range []string{"/metrics", "/v1/history"} {
				for token, want := range map[string]int{scraper: c.scraper, admin: c.admin, "": c.none} {
					if path == "/metrics" && token == scraper && want != 0 {
						want = 200
					}
					if got := statusOf(path, endpoint.Addr().String(), token, files.pool, c.certs); got != want {
						t.Errorf("%s with token %q: %d, want %d", path, token, got, want)
					}
				}
			}
			for _, path := range []string{"/", "/healthz", "/metrics/", "//metrics", "/v1/../metrics", "/v1/modules/m/metrics"} {
				if got := statusOf(path, endpoint.Addr().String(), scraper, files.pool, c.certs); c.scraper == 403 && got != 403 {
					t.Errorf("%s with the token of metrics: %d, want 403", path, got)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func status(address, token string, pool *x509.CertPool, certs []tls.Certificate) int {
	return statusOf("/healthz", address, token, pool, certs)
}

func statusOf(path, address, token string, pool *x509.CertPool, certs []tls.Certificate) int {
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: certs, MinVersion: tls.VersionTLS13},
	}
	r, _ := http.NewRequest("GET", "https://"+address+path, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	got, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0
	}
	got.Body.Close()
	return got.StatusCode
}

type certificateFiles struct {
	cert, key string
	pair      []tls.Certificate
	pool      *x509.CertPool
}

// certificates makes one self-signed certificate that serves as authority, server and client.
func certificates(t *testing.T) certificateFiles {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kerb test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return certificateFiles{write(t, string(certPEM), 0o600), write(t, string(keyPEM), 0o600), []tls.Certificate{pair},
		pool}
}

func write(t *testing.T, text string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := serve.ListenUnix(path, "no-such-group")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func pathsIn(socket string) paths.Paths {
	p := paths.Default()
	p.Run = filepath.Dir(socket)
	return p
}
