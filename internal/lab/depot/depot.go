// SPDX-License-Identifier: Apache-2.0

// Package depot provides a registry on the loopback interface of a node, and a package author whom the node trusts, for
// tests and benchmarks.
package depot

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// Depot is a registry with an author.
type Depot struct {
	Address string
	Content http.Handler // of the registry

	ns     *netlab.Namespace
	agent  *node.Node
	dir    string
	key    string
	server *http.Server
}

// New starts a registry in a namespace, and makes an agent trust a new key. Files of both are in a directory. wrap may
// modify the registry's responses; it may be nil.
func New(ns *netlab.Namespace, agent *node.Node, dir string, wrap func(http.Handler) http.Handler) (*Depot, error) {
	d := &Depot{Address: "127.0.0.1:0", Content: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ns: ns,
		agent: agent, dir: dir, key: filepath.Join(dir, "acme.key")}
	if wrap != nil {
		d.Content = wrap(d.Content)
	}
	if _, err := d.Kerb("package", "keygen", filepath.Join(dir, "acme")); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "acme.pub"))
	if err == nil {
		err = os.MkdirAll(agent.Keys(), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(agent.Keys(), "acme.pub"), text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return d, d.Open()
}

// Open starts the registry again with the same address.
func (d *Depot) Open() error {
	var l net.Listener
	err := d.ns.Do(func() (err error) { l, err = net.Listen("tcp", d.Address); return err })
	if err != nil {
		return err
	}
	d.Address = l.Addr().String()
	d.server = &http.Server{Handler: d.Content, ReadHeaderTimeout: time.Minute}
	go func(server *http.Server) { _ = server.Serve(l) }(d.server)
	return nil
}

// Close stops the registry, which keeps its content.
func (d *Depot) Close() error { return d.server.Close() }

// Kerb runs a command of the author, and returns its output.
func (d *Depot) Kerb(args ...string) ([]byte, error) {
	cmd := d.agent.Command(context.Background(), args...)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kerb %q: %w", args, err)
	}
	return out, nil
}

var versionLine = regexp.MustCompile(`(?m)^version:.*$`)

// Push pushes a package of files with a version, and returns its reference with the digest.
func (d *Depot) Push(source fs.FS, repository, version string, signed bool) (string, error) {
	dir := filepath.Join(d.dir, filepath.Base(repository)+"-"+version)
	if err := os.CopyFS(dir, source); err != nil && !os.IsExist(err) {
		return "", err
	}
	manifest := filepath.Join(dir, "kerb.yaml")
	text, err := os.ReadFile(manifest)
	if err == nil {
		err = os.WriteFile(manifest, versionLine.ReplaceAll(text, []byte("version: "+version)), 0o600)
	}
	if err != nil {
		return "", err
	}
	args := []string{"package", "push", dir, d.Address + "/" + repository + ":" + version, "-o", "json"}
	if signed {
		args = append(args, "--key", d.key)
	}
	out, err := d.Kerb(args...)
	if err != nil {
		return "", err
	}
	var pushed struct{ Digest string }
	err = json.Unmarshal(out, &pushed)
	return d.Address + "/" + repository + "@" + pushed.Digest, err
}
