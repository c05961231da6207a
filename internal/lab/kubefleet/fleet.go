// SPDX-License-Identifier: Apache-2.0

package kubefleet

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
)

const (
	group       = "/apis/kerb.dev/v1alpha1/"
	modulesPath = group + "clustermodules/"
	nodesPath   = group + "kerbnodes/"

	patience = 8 * time.Minute // timeout of an operation of all nodes, on a busy machine
)

// Fleet is a cluster of simulated nodes.
type Fleet struct {
	Server *kubeapi.Server
	Agents *Agents
	Size   int
}

// Module has the used fields of a ClusterModule.
type Module struct {
	Metadata struct {
		Generation int64 `json:"generation"`
	} `json:"metadata"`
	Status struct {
		Observed   int64 `json:"observedGeneration"`
		Desired    int   `json:"desired"`
		Conditions []struct {
			Type, Status, Reason, Message string
		} `json:"conditions"`
		Rollout *struct {
			Percent  int      `json:"percent"`
			Canaries []string `json:"canaries"`
			Halted   *struct {
				Reason string `json:"reason"`
			} `json:"halted"`
		} `json:"rollout"`
	} `json:"status"`
}

// RolledOut returns status, reason and message of the condition of a rollout.
func (m *Module) RolledOut() (status, reason, message string) {
	for _, c := range m.Status.Conditions {
		if c.Type == "RolledOut" {
			return c.Status, c.Reason, c.Message
		}
	}
	return "", "", ""
}

// Halted reports whether the rollout has halted.
func (m *Module) Halted() bool { return m.Status.Rollout != nil && m.Status.Rollout.Halted != nil }

// Apply applies a ClusterModule like kubectl apply.
func Apply(server *kubeapi.Server, name, spec string) error {
	return server.Apply(modulesPath+name, fmt.Sprintf(
		"apiVersion: kerb.dev/v1alpha1\nkind: ClusterModule\nmetadata: {name: %q}\nspec: %s\n", name, spec))
}

// Get reads a ClusterModule.
func Get(server *kubeapi.Server, name string) (m Module, err error) {
	err = server.Call(http.MethodGet, modulesPath+name, nil, &m)
	return m, err
}

// Await polls ok until it returns true or an error.
func Await(ctx context.Context, what string, ok func() (bool, error)) error {
	for end := time.Now().Add(patience); ; {
		is, err := ok()
		if is || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited %v, and still not: %s", patience, what)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// web is the name of the fleet's module.
const web = "web"

func version(mark string) string {
	return "package: {name: firewall}, config: {" + Mark + ": " + mark + "}"
}

// Change changes the version of the module on all nodes at once. It returns the time until each node's agent had it,
// and the time until the API server had stored it.
func (f *Fleet) Change(ctx context.Context, mark string) (took []time.Duration, stored time.Duration, err error) {
	began := time.Now()
	if err := Apply(f.Server, web, "{"+version(mark)+", attach: {pods: {}}}"); err != nil {
		return nil, 0, err
	}
	stored = time.Since(began)
	err = Await(ctx, mark+" is on all nodes", func() (bool, error) { return len(f.Agents.Arrived(mark)) >= f.Size, nil })
	for _, at := range f.Agents.Arrived(mark) {
		took = append(took, at.Sub(began))
	}
	return took, stored, err
}

// Rollout rolls out a version, in the default waves without soak time, until it is complete or halts. It returns the
// condition, and the number of steps.
func (f *Fleet) Rollout(ctx context.Context, mark, previous string) (m Module, steps int, err error) {
	err = Apply(f.Server, web, "{"+version(mark)+", attach: {pods: {}}, rollout: {soakSeconds: 0, previous: {"+
		version(previous)+"}}}")
	if err != nil {
		return m, 0, err
	}
	last := ""
	err = Await(ctx, "the rollout of "+mark+" has ended", func() (bool, error) {
		var err error
		if m, err = Get(f.Server, web); err != nil || m.Status.Rollout == nil ||
			m.Status.Observed != m.Metadata.Generation {
			return false, err
		}
		if is := fmt.Sprint(m.Status.Rollout.Percent, m.Status.Rollout.Canaries); is != last {
			last, steps = is, steps+1
		}
		status, _, _ := m.RolledOut()
		return m.Halted() || status == "True", nil
	})
	return m, steps, err
}

// Reported returns how many nodes have reported their status.
func (f *Fleet) Reported() (n int, err error) {
	var list struct {
		Items []struct{ Status *struct{} }
	}
	err = f.Server.Call(http.MethodGet, nodesPath, nil, &list)
	for _, item := range list.Items {
		if item.Status != nil {
			n++
		}
	}
	return n, err
}

// Counted waits until the controller has counted the current version on all nodes.
func (f *Fleet) Counted(ctx context.Context) error {
	return Await(ctx, "the controller has counted the nodes", func() (bool, error) {
		m, err := Get(f.Server, web)
		return m.Status.Observed == m.Metadata.Generation && m.Status.Desired == f.Size, err
	})
}
