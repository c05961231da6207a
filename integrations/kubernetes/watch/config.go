// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// serviceAccount is where Kubernetes mounts the credentials of a pod.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Limits of a connection. An API server that hangs closes none: the pings find out.
const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 30 * time.Second
	pingAfter     = 30 * time.Second
	pingTimeout   = 15 * time.Second
)

// receiveBuffer is how much of a list the server sends before it is decoded. With the 4 MiB that net/http takes by
// default, a list of thousands of pods was in memory as text, too, when the program started.
const receiveBuffer = 128 << 10

// Client is a client of an API server. It is safe for concurrent use.
type Client struct {
	base      string
	token     string
	tokenFile string // read for each request: kubelet replaces it about once an hour
	http      *http.Client

	// Credentials in files are renewed: load reads them again when files have other contents than those of sum.
	load  func() (*Client, error)
	files []string
	sum   [sha256.Size]byte
	mu    sync.Mutex
	now   *Client // what load has returned last
	count *counters
}

// current returns the client with the credentials that the files have now. If they cannot be used, as while they are
// written one after the other, the last ones stay.
func (c *Client) current() *Client {
	if c.load == nil {
		return c
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if sum(nil, c.now.files) == c.now.sum {
		return c.now
	}
	if next, err := c.load(); err == nil {
		c.now.http.CloseIdleConnections() // those in use end with their requests
		c.now = next
	}
	return c.now
}

// sum is the digest of a text and of the contents of files.
func sum(text []byte, files []string) (out [sha256.Size]byte) {
	h := sha256.New()
	h.Write(text)
	for _, file := range files {
		content, _ := os.ReadFile(file) // one that is missing has no content
		h.Write(content)
	}
	h.Sum(out[:0])
	return out
}

// kubeconfig has the supported fields of a kubeconfig file.
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Contexts       []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
	Clusters []struct {
		Name    string
		Cluster struct {
			Server string
			CAFile string `yaml:"certificate-authority"`
			CA     string `yaml:"certificate-authority-data"`
			Name   string `yaml:"tls-server-name"`
		}
	}
	Users []struct {
		Name string
		User struct {
			Token     string
			TokenFile string `yaml:"tokenFile"`
			CertFile  string `yaml:"client-certificate"`
			Cert      string `yaml:"client-certificate-data"`
			KeyFile   string `yaml:"client-key"`
			Key       string `yaml:"client-key-data"`
			Exec      any    `yaml:"exec"`
		}
	}
}

// Load returns a client for the API server of a kubeconfig file or, without one, of the cluster in whose pod this
// process runs.
func Load(file string) (*Client, error) {
	load := func() (*Client, error) { return fromFile(file) }
	if file == "" {
		load = func() (*Client, error) { return inCluster(serviceAccount) }
	}
	first, err := load()
	if err != nil {
		return nil, err
	}
	return &Client{load: load, now: first, count: newCounters()}, nil
}

func fromFile(file string) (*Client, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	others := k.files(filepath.Dir(file))
	before := sum(text, others) // of what is read next, or of something older: then it is read again
	c, err := k.client(filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	c.files, c.sum = append([]string{file}, others...), before
	return c, nil
}

// files returns the files with certificates and keys.
func (k kubeconfig) files(dir string) (out []string) {
	var all []string
	for _, of := range k.Clusters {
		all = append(all, of.Cluster.CAFile)
	}
	for _, of := range k.Users {
		all = append(all, of.User.CertFile, of.User.KeyFile)
	}
	for _, file := range all {
		if file != "" {
			out = append(out, absolute(dir, file))
		}
	}
	return out
}

// inCluster returns a client with the service account in dir. The token's file is kept by name, because the kubelet
// renews its contents.
func inCluster(dir string) (*Client, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; " +
			"use --kubeconfig")
	}
	files := []string{filepath.Join(dir, "ca.crt")}
	before := sum(nil, files)
	pool, err := authorities(os.ReadFile(files[0]))
	if err != nil {
		return nil, fmt.Errorf("certificate authority of the service account: %w", err)
	}
	c := newClient("https://"+net.JoinHostPort(host, port), &tls.Config{RootCAs: pool})
	c.tokenFile = filepath.Join(dir, "token")
	c.files, c.sum = files, before
	return c, nil
}

// client takes the cluster of the current context. A plain http server is refused: the token could be read on the way.
func (k kubeconfig) client(dir string) (*Client, error) {
	var cluster, user string
	for _, c := range k.Contexts {
		if c.Name == k.CurrentContext {
			cluster, user = c.Context.Cluster, c.Context.User
		}
	}
	if cluster == "" {
		return nil, fmt.Errorf("current-context %q names no context with a cluster", k.CurrentContext)
	}
	config := &tls.Config{}
	var c *Client
	for _, of := range k.Clusters {
		if of.Name != cluster {
			continue
		}
		if !strings.HasPrefix(of.Cluster.Server, "https://") {
			return nil, fmt.Errorf("server %q of cluster %s: only https is supported", of.Cluster.Server, cluster)
		}
		if of.Cluster.CA+of.Cluster.CAFile != "" {
			pool, err := authorities(inline(dir, of.Cluster.CA, of.Cluster.CAFile))
			if err != nil {
				return nil, fmt.Errorf("certificate authority of cluster %s: %w", cluster, err)
			}
			config.RootCAs = pool
		}
		config.ServerName = of.Cluster.Name
		c = newClient(strings.TrimSuffix(of.Cluster.Server, "/"), config)
	}
	if c == nil {
		return nil, fmt.Errorf("there is no cluster %q", cluster)
	}
	return c, k.credentials(c, config, user, dir)
}

// credentials refuses exec plugins instead of running them: they would run with root's rights, and may ask a user who
// is not there.
func (k kubeconfig) credentials(c *Client, config *tls.Config, name, dir string) error {
	for _, of := range k.Users {
		if of.Name != name {
			continue
		}
		u := of.User
		if u.Exec != nil {
			return fmt.Errorf("user %s: exec plugins are not supported; use tokenFile or a client certificate", name)
		}
		c.token = u.Token
		if u.TokenFile != "" {
			c.tokenFile = absolute(dir, u.TokenFile)
		}
		if u.Cert+u.CertFile == "" {
			return nil
		}
		certificate, err := inline(dir, u.Cert, u.CertFile)
		if err != nil {
			return fmt.Errorf("certificate of user %s: %w", name, err)
		}
		key, err := inline(dir, u.Key, u.KeyFile)
		if err != nil {
			return fmt.Errorf("key of user %s: %w", name, err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return fmt.Errorf("certificate of user %s: %w", name, err)
		}
		config.Certificates = []tls.Certificate{pair}
		return nil
	}
	return fmt.Errorf("there is no user %q", name)
}

func newClient(base string, config *tls.Config) *Client {
	return &Client{base: base, http: &http.Client{CheckRedirect: keepToken, Transport: &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: dialTimeout, KeepAlive: pingAfter}).DialContext,
		// ForceAttemptHTTP2 because of the two fields above it: all watches share one connection.
		ForceAttemptHTTP2: true, TLSClientConfig: config, TLSHandshakeTimeout: dialTimeout,
		ResponseHeaderTimeout: headerTimeout, IdleConnTimeout: time.Minute, DisableCompression: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
			MaxReceiveBufferPerStream: receiveBuffer},
	}}}
}

// inline is text in base64, or else the content of a file.
func inline(dir, text, file string) ([]byte, error) {
	if text != "" {
		return base64.StdEncoding.DecodeString(text)
	}
	return os.ReadFile(absolute(dir, file))
}

func absolute(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

func authorities(pem []byte, err error) (*x509.CertPool, error) {
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("holds no certificate in PEM")
	}
	return pool, nil
}

// keepToken rejects redirects, which API servers do not use, since the token must not be sent elsewhere.
func keepToken(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
