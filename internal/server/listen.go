// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/fault"
)

// Endpoint is a listener and what it asks of clients.
type Endpoint struct {
	net.Listener
	token string // bearer token that every request must have, or empty
}

// Listen opens all listeners that c asks for: the socket, and TCP if configured.
func Listen(c config.Config) ([]Endpoint, error) {
	socket, err := ListenUnix(c.Paths.Socket(), c.SocketGroup)
	if err != nil || c.TCP == nil {
		return []Endpoint{{Listener: socket}}, err
	}
	tcp, err := ListenTCP(*c.TCP)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return []Endpoint{{Listener: socket}, tcp}, nil
}

// maxSocketPath is what fits into sun_path, with its terminating zero.
const maxSocketPath = 107

// ListenUnix listens on a socket at path: mode 0660, owned by root and by group if there is such a group. The directory is
// made if it is missing. The socket is made in a private directory and renamed into place, so that nobody ever meets one
// with other permissions, or none where one was. The socket of a dead agent is replaced; if one is alive, or path is
// something else than a socket, the error is *fault.Conflict and nothing has changed.
func ListenUnix(path, group string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := checkFree(path); err != nil {
		return nil, err
	}
	private, err := os.MkdirTemp(filepath.Dir(path), ".kerb-")
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer os.RemoveAll(private)
	l, err := listenPrivate(filepath.Join(private, "s"), group)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := os.Rename(filepath.Join(private, "s"), path); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return newUnixListener(l, path)
}

// checkFree tells whether a socket may be put at path.
func checkFree(path string) error {
	if len(path) > maxSocketPath {
		return &fault.Invalid{Field: "paths.run", Reason: fmt.Sprintf("%s is too long for a socket: at most %d bytes", path, maxSocketPath)}
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return &fault.Conflict{Reason: fmt.Sprintf("%s is there and is not a socket; move it away", path)}
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return &fault.Conflict{Reason: fmt.Sprintf("another agent answers on %s; there is one per node", path)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil // nobody listens any more
	}
	return &fault.Conflict{Reason: fmt.Sprintf("%s may be in use: %v", path, err)}
}

func listenPrivate(path, group string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it is about to be renamed
	if err := permit(path, group); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func permit(path, group string) error {
	if err := os.Chmod(path, 0o660); err != nil {
		return err
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return nil // the group is optional; without it only root may connect
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return fmt.Errorf("group %s: %w", group, err)
	}
	return os.Chown(path, -1, gid)
}

// unixListener removes its socket when it is closed, unless another one is there by then.
type unixListener struct {
	*net.UnixListener
	path string
	made os.FileInfo
}

func newUnixListener(l *net.UnixListener, path string) (net.Listener, error) {
	made, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return &unixListener{l, path, made}, nil
}

func (l *unixListener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
		os.Remove(l.path) // a stale socket is replaced anyway
	}
	return l.UnixListener.Close()
}

// ListenTCP listens as c says, always with TLS 1.3. It refuses to listen without client certificates or a token.
func ListenTCP(c config.TCP) (Endpoint, error) {
	if c.ClientCA == "" && c.TokenFile == "" {
		return Endpoint{}, &fault.Invalid{Field: "tcp", Reason: "a TCP listener needs clientCA or tokenFile, so that not everybody can change the node"}
	}
	secure, err := tlsConfig(c)
	if err != nil {
		return Endpoint{}, err
	}
	var token string
	if c.TokenFile != "" {
		if token, err = readToken(c.TokenFile); err != nil {
			return Endpoint{}, err
		}
	}
	l, err := tls.Listen("tcp", c.Address, secure)
	if err != nil {
		return Endpoint{}, fmt.Errorf("TCP listener: %w", err)
	}
	return Endpoint{Listener: l, token: token}, nil
}

func tlsConfig(c config.TCP) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, &fault.Invalid{Field: "tcp.certificate", Reason: err.Error()}
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if c.ClientCA == "" {
		return secure, nil
	}
	data, err := os.ReadFile(c.ClientCA)
	if err != nil {
		return nil, &fault.Invalid{Field: "tcp.clientCA", Reason: err.Error()}
	}
	secure.ClientCAs = x509.NewCertPool()
	if !secure.ClientCAs.AppendCertsFromPEM(data) {
		return nil, &fault.Invalid{Field: "tcp.clientCA", Reason: c.ClientCA + " holds no PEM certificate"}
	}
	secure.ClientAuth = tls.RequireAndVerifyClientCert
	return secure, nil
}

// minToken is the shortest token that is not refused, in bytes.
const minToken = 16

func readToken(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", &fault.Invalid{Field: "tcp.tokenFile", Reason: err.Error()}
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", &fault.Invalid{Field: "tcp.tokenFile", Reason: path + " can be read by others; chmod 600 it"}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", &fault.Invalid{Field: "tcp.tokenFile", Reason: err.Error()}
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minToken {
		return "", &fault.Invalid{Field: "tcp.tokenFile", Reason: fmt.Sprintf("the token must have at least %d characters", minToken)}
	}
	return token, nil
}

// Guard puts the endpoint's token in front of next.
func (e Endpoint) Guard(next http.Handler) http.Handler {
	if e.token == "" {
		return next
	}
	return requireToken(e.token, next)
}

func requireToken(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + token)) // hashed: the comparison takes the same time for every length
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			slog.Warn("request without the right token", "remote", r.RemoteAddr)
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeProblem(w, newProblem(typeInvalid, http.StatusUnauthorized, "the bearer token is missing or wrong"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
