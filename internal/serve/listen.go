// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/unixlisten"
)

// TCP is a listener that is always encrypted and always authenticated.
type TCP struct {
	Address     string `json:"address,omitempty"`     // host:port
	Certificate string `json:"certificate,omitempty"` // PEM file
	Key         string `json:"key,omitempty"`         // PEM file
	ClientCA    string `json:"clientCA,omitempty"`    // PEM file; clients must show a certificate signed by it
	TokenFile   string `json:"tokenFile,omitempty"`   // clients must send its content as bearer token
	// MetricsTokenFile has a bearer token that allows nothing but GET /metrics.
	MetricsTokenFile string `json:"metricsTokenFile,omitempty"`
}

// guarded reports whether clients must authenticate.
func (t TCP) guarded() bool { return t.ClientCA != "" || t.TokenFile != "" || t.MetricsTokenFile != "" }

// Check returns all that is wrong with t as a field of a configuration, joined, as *apierrors.Invalid.
func (t TCP) Check(field string) error {
	var wrong []error
	invalid := func(field, reason string) { wrong = append(wrong, &apierrors.Invalid{Field: field, Reason: reason}) }
	if t.Address == "" {
		invalid(field+".address", "missing; write host:port")
	}
	if t.Certificate == "" || t.Key == "" {
		invalid(field+".certificate", "a TCP listener needs a certificate and a key")
	}
	if !t.guarded() {
		invalid(field, unguarded)
	}
	return errors.Join(wrong...)
}

const unguarded = "a TCP listener needs clientCA, tokenFile or metricsTokenFile, so that not everybody can change " +
	"the node"

// Endpoint is a listener with its requirements on clients.
type Endpoint struct {
	net.Listener

	// Of an endpoint that needs credentials; else nil.
	credentials *credentials
	gate        *gate
	failed      *authFailures
}

// credentials are the server's certificate and what clients must show. They may change while the endpoint is served.
type credentials struct {
	now atomic.Pointer[keys]
}

type keys struct {
	tls      *tls.Config
	verified bool   // a certificate that the TLS handshake has verified is enough
	token    string // bearer token that allows everything, or empty
	metrics  string // bearer token that allows metrics alone, or empty
}

// load reads the files that c names, and keeps what was there before if one is wrong.
func (k *credentials) load(c TCP) error {
	if !c.guarded() {
		return &apierrors.Invalid{Field: "tcp", Reason: unguarded}
	}
	secure, err := tlsConfig(c)
	if err != nil {
		return err
	}
	next := &keys{tls: secure, verified: c.ClientCA != "" && c.TokenFile == ""}
	for _, t := range []struct {
		field, file string
		token       *string
	}{
		{"tcp.tokenFile", c.TokenFile, &next.token}, {metricsTokenField, c.MetricsTokenFile, &next.metrics},
	} {
		if t.file == "" {
			continue
		}
		if *t.token, err = readToken(t.field, t.file); err != nil {
			return err
		}
	}
	if next.token != "" && next.token == next.metrics {
		return &apierrors.Invalid{Field: "tcp.metricsTokenFile",
			Reason: "has the token that allows everything; use another one"}
	}
	k.now.Store(next)
	return nil
}

// RequiresAuth reports whether clients need credentials.
func (e Endpoint) RequiresAuth() bool { return e.gate != nil }

// Reload replaces the certificates and tokens of an endpoint with authentication. After an error it keeps the old ones.
func (e Endpoint) Reload(c TCP) error { return e.credentials.load(c) }

// Condition reports whether a guarded endpoint is at a limit of connections.
func (e Endpoint) Condition() v1alpha1.Condition { return e.gate.condition() }

// Stats returns the open and the refused connections and the failed authentications of an endpoint with authentication.
func (e Endpoint) Stats() (open, refused, failed float64) {
	o, r := e.gate.counts()
	return float64(o), float64(r), float64(e.failed.total.Load())
}

// CheckTCP reads the certificates, keys and tokens that c names.
func CheckTCP(c TCP) error { return new(credentials).load(c) }

// ListenUnix listens on a socket at path: mode 0660, owned by root and by group if there is such a group.
func ListenUnix(path, group string) (net.Listener, error) {
	l, err := unixlisten.Listen("unix", path, group)
	if err != nil {
		return nil, err // a nil *Listener would be no nil net.Listener
	}
	return l, nil
}

// ListenTCP listens as c says, always with TLS 1.3. It refuses to listen without client certificates or a token.
func ListenTCP(c TCP) (Endpoint, error) {
	known := &credentials{}
	if err := known.load(c); err != nil {
		return Endpoint{}, err
	}
	l, err := net.Listen("tcp", c.Address)
	if err != nil {
		return Endpoint{}, fmt.Errorf("TCP listener: %w", err)
	}
	limited := LimitConnections(l, MaxConnectionsPerAddress).(*gatedListener)
	secure := &tls.Config{MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return known.now.Load().tls, nil
		}}
	return Endpoint{Listener: tls.NewListener(limited, secure), credentials: known, gate: limited.gate,
		failed: newAuthFailures()}, nil
}

func tlsConfig(c TCP) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, &apierrors.Invalid{Field: "tcp.certificate", Reason: err.Error()}
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		NextProtos: []string{"http/1.1"}}
	if c.ClientCA == "" {
		return secure, nil
	}
	data, err := os.ReadFile(c.ClientCA)
	if err != nil {
		return nil, &apierrors.Invalid{Field: "tcp.clientCA", Reason: err.Error()}
	}
	secure.ClientCAs = x509.NewCertPool()
	if !secure.ClientCAs.AppendCertsFromPEM(data) {
		return nil, &apierrors.Invalid{Field: "tcp.clientCA", Reason: c.ClientCA + " contains no PEM certificate"}
	}
	secure.ClientAuth = tls.RequireAndVerifyClientCert
	return secure, nil
}

const metricsTokenField = "tcp.metricsTokenFile"

// minToken is the shortest token that is not refused, in bytes.
const minToken = 16

func readToken(field, path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", &apierrors.Invalid{Field: field, Reason: err.Error()}
	}
	others := info.Mode().Perm() & 0o077
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && field == metricsTokenField && os.Geteuid() != 0 && int(stat.Gid) == os.Getegid() {
		others &^= 0o040 // as in a pod that is not root's, whose group owns its secrets
	}
	if others != 0 {
		return "", &apierrors.Invalid{Field: field, Reason: path + " can be read by others; chmod 600 it"}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", &apierrors.Invalid{Field: field, Reason: err.Error()}
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minToken {
		return "", &apierrors.Invalid{Field: field,
			Reason: fmt.Sprintf("the token must have at least %d characters", minToken)}
	}
	return token, nil
}

// ListenUnauthenticatedTCP listens on TCP without authentication and encryption.
func ListenUnauthenticatedTCP(address string) (Endpoint, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return Endpoint{}, fmt.Errorf("TCP listener: %w", err)
	}
	return Endpoint{Listener: LimitConnections(l, MaxConnections)}, nil
}

// protect puts the endpoint's tokens in front of h, and bounds what a client without credentials can take: time,
// connections and log lines. It changes nothing on endpoints that need no credentials.
func (e Endpoint) protect(h *http.Server, log *slog.Logger) {
	if e.gate == nil {
		return
	}
	e.gate.log, e.failed.log = log, log
	h.ReadHeaderTimeout = HandshakeTimeout // net/http takes it for the handshake, too
	h.ErrorLog = stdlog.New(handshakeLog{e.failed, log}, "", 0)
	h.Handler = e.authorize(h.Handler)
}

// What is refused is a problem of RFC 9457, as the API's others are.
const (
	unauthorized = `{"type":"urn:kerb:invalid","title":"Unauthorized","status":401,"detail":"the bearer token is missing or wrong"}
`
	metricsOnly = `{"type":"urn:kerb:invalid","title":"Forbidden","status":403,"detail":"this token allows GET /metrics alone"}
`
)

// authorize passes requests on that have a token which allows them.
func (e Endpoint) authorize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known := e.credentials.now.Load()
		// Hashed, so that a comparison takes the same time for every token and every length.
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		all, metrics := isToken(known.token, got), isToken(known.metrics, got)
		switch {
		case known.verified || all || metrics && r.URL.Path == "/metrics" && r.Method == http.MethodGet:
			next.ServeHTTP(w, r)
			return
		case metrics:
			refuse(w, http.StatusForbidden, metricsOnly)
			return
		}
		select {
		case <-time.After(e.failed.note(r.RemoteAddr, "the bearer token is missing or wrong")):
		case <-r.Context().Done():
		}
		w.Header().Set("Connection", "close")
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, unauthorized)
	})
}

func isToken(token string, hashed [sha256.Size]byte) bool {
	want := sha256.Sum256([]byte("Bearer " + token))
	return subtle.ConstantTimeCompare(want[:], hashed[:]) == 1 && token != ""
}

func refuse(w http.ResponseWriter, status int, problem string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, problem)
}
