// SPDX-License-Identifier: Apache-2.0

// Prepare writes the initial files of the test cluster: prepare DIRECTORY NODE... makes certificates and kubeconfigs of
// the control plane and of nodes, prepare image FILE NAME DIRECTORY COMMAND... an image of the files of a directory.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing/fstest"

	"github.com/kerb-edge/kerb/internal/lab/pki"
)

// server is the address of the API server.
const server = "172.30.0.1"

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) > 4 && args[0] == "image":
		err = writeImage(args[1], args[2], os.DirFS(args[3]), args[4:]...)
	case len(args) > 1 && args[0] != "image":
		err = certificates(args[0], args[1:])
	default:
		fmt.Fprintln(os.Stderr, "usage: prepare DIRECTORY NODE...\n       prepare image FILE NAME DIRECTORY COMMAND...")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}

func certificates(dir string, nodes []string) error {
	ca, err := pki.New(dir)
	if err != nil {
		return err
	}
	err = ca.Issue("server", &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: []net.IP{net.ParseIP(server), {127, 0, 0, 1}, {10, 96, 0, 1}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	err = errors.Join(err, user(ca, dir, "admin", "admin", "system:masters"))
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "kube-proxy"} {
		err = errors.Join(err, user(ca, dir, name, "system:"+name))
	}
	for i, name := range nodes {
		err = errors.Join(err, user(ca, dir, name, "system:node:"+name, "system:nodes"),
			ca.Issue(name+"-server", &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:" + name},
				IPAddresses: []net.IP{{172, 30, 0, byte(11 + i)}}, DNSNames: []string{name},
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}))
	}
	return err
}

// user issues the certificate of a client, and writes NAME.kubeconfig.
func user(ca *pki.Authority, dir, name, common string, groups ...string) error {
	err := ca.Issue(name, &x509.Certificate{Subject: pkix.Name{CommonName: common, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://%[1]s:6443", certificate-authority: %[2]s/ca.crt}}]
users: [{name: test, user: {client-certificate: %[2]s/%[3]s.crt, client-key: %[2]s/%[3]s.key}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
`, server, dir, name)
	return errors.Join(err, os.WriteFile(filepath.Join(dir, name+".kubeconfig"), []byte(text), 0o600))
}

// archive packs a tree; symbolic links are kept.
func archive(root fs.FS) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := errors.Join(w.AddFS(root), w.Close())
	return out.Bytes(), err
}

// writeImage writes an image in the format of `docker save`, which `ctr images import` reads.
func writeImage(path, reference string, root fs.FS, command ...string) error {
	layer, err := archive(root)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": command[:1], "Cmd": command[1:]},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}}})
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]any{map[string]any{"Config": name, "RepoTags": []string{reference},
		"Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	all, err := archive(fstest.MapFS{name: {Data: config}, "layer.tar": {Data: layer}, "manifest.json": {Data: manifest}})
	if err != nil {
		return err
	}
	return os.WriteFile(path, all, 0o644)
}
