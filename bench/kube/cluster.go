// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/deploy/kubernetes"
	"github.com/kerb-edge/kerb/internal/binpath"
	process "github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

// cluster is an API server with Kerb's definitions, and a network for nodes.
type cluster struct {
	bench.Closers
	lab        *netlab.Lab
	api        *kubeapi.Server
	dir        string
	kubeconfig string // of an administrator
}

var _ io.Closer = (*cluster)(nil)

// open starts an API server in a separate lab.
func open(prefix string) (*cluster, error) {
	c := &cluster{}
	return c, c.CloseOn(c.build(prefix))
}

func (c *cluster) build(prefix string) (err error) {
	if _, err := exec.LookPath(kubeAPI); err != nil {
		return fmt.Errorf("%w: needs an API server: `make kube-api` in a checkout of Kerb builds out/kube-api; set "+
			"--kube-api or %s to its path", bench.ErrLeftOut, kubeapi.Program)
	}
	program, err := filepath.Abs(kubeAPI)
	if err != nil {
		return err
	}
	if c.lab, err = netlab.NewIn(prefix); err != nil {
		return err
	}
	c.Later(c.lab.Close)
	// In memory, since each of many real nodes would have its own disk.
	if c.dir, err = tempdir.NewIn("/dev/shm"); err != nil {
		return err
	}
	c.Later(func() error { return tempdir.Remove(c.dir) })
	files := filepath.Join(c.dir, "api")
	if err := os.Mkdir(files, 0o700); err != nil {
		return err
	}
	if c.api, err = kubeapi.Start(c.lab.Node(), kubeapi.Loopback, program, files); err != nil {
		return err
	}
	c.Later(func() error { c.api.Close(); return nil })
	definitions, err := kubernetes.Definitions()
	if err != nil {
		return err
	}
	for _, text := range definitions {
		if err := c.api.Install(text); err != nil {
			return err
		}
	}
	if c.kubeconfig, err = c.api.Kubeconfig(""); err != nil {
		return err
	}
	return c.api.Call(http.MethodPost, "/api/v1/namespaces", map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "kerb-system"}}, nil) // of the controller's Lease
}

// program is a running program of Kerb.
type program struct {
	cmd *exec.Cmd
	log string
}

// run starts one of Kerb's programs in the node's namespace.
func (c *cluster) run(name string, args ...string) (*program, error) {
	path, err := binpath.Find(name)
	if err != nil {
		return nil, err
	}
	return c.runAs(name, append([]string{path}, args...))
}

func (c *cluster) runAs(name string, args []string) (*program, error) {
	p := &program{c.lab.Node().Command(context.Background(), args[0], args[1:]...), filepath.Join(c.dir, name+".log")}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.Stderr = log
	if err := process.Start(p.cmd); err != nil {
		return nil, err
	}
	c.Later(func() error {
		err := p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		if errors.Is(err, os.ErrProcessDone) {
			text, _ := os.ReadFile(p.log)
			return fmt.Errorf("%s exited: %s", name, text)
		}
		return err
	})
	return p, nil
}

func (p *program) pid() int { return p.cmd.Process.Pid }
