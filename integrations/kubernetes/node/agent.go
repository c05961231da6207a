// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
)

// agentTimeout is the timeout of a request to the agent, which may verify the chains of many pods on a slow machine.
const agentTimeout = 5 * time.Minute

// agent is a client of the agent's API.
type agent struct{ client *client.Client }

// ref identifies one version of a resource.
type ref struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Version string `json:"resourceVersion,omitempty"`
}

func (a agent) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	return a.client.Call(ctx, method, path, in, out)
}

func (a agent) applyModules(ctx context.Context, modules []v1.Module, prune bool) error {
	path := "/v1/apply?owner=" + names.Owner
	if prune {
		path += "&prune=true"
	}
	return a.call(ctx, http.MethodPost, path, modules, nil)
}

// verify makes a dry run: the agent verifies a module together with its other modules, and measures it if requested.
func (a agent) verify(ctx context.Context, m v1.Module, measure bool) (v1.CostChange, error) {
	var r v1.ApplyResult
	path := "/v1/apply?dryRun=true&verify=true&owner=" + names.Owner
	call := func(path string) error { return a.call(ctx, http.MethodPost, path, []v1.Module{m}, &r) }
	var err error
	if measure {
		err = call(path + "&measure=true")
	}
	var status *client.StatusError
	if !measure || errors.As(err, &status) && status.Status == http.StatusBadRequest {
		err = call(path) // older agents do not know the parameter measure, and always measure
	}
	for _, c := range r.Costs {
		if c.Module == m.Metadata.Name {
			return c, err
		}
	}
	return v1.CostChange{}, err
}

func (a agent) modules(ctx context.Context) (all []v1.Module, err error) {
	return all, a.call(ctx, http.MethodGet, "/v1/modules", nil, &all)
}

// applyVirtual applies virtual services, and with prune deletes all others of the cluster.
func (a agent) applyVirtual(ctx context.Context, all *array, prune bool) error {
	path := "/v1/apply?owner=" + names.OwnerServices
	if prune {
		path += "&prune=true"
	}
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	return a.client.Post(ctx, path, all)
}

// array is a reader of a JSON array whose elements are encoded while it is sent.
type array struct {
	keys  []services.Key
	text  func(services.Key) []byte // an empty text omits the element
	sent  bool                      // the opening bracket was sent
	comma bool
	end   bool
	rest  []byte // unread part of the current element
}

func (a *array) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		switch {
		case !a.sent:
			a.sent, a.rest = true, []byte("[")
		case len(a.keys) > 0:
			text := a.text(a.keys[0])
			if a.keys = a.keys[1:]; len(text) > 0 && a.comma {
				text = slices.Insert(text, 0, ',')
			}
			a.rest, a.comma = text, a.comma || len(text) > 0
		case a.end:
			return 0, io.EOF
		default:
			a.end, a.rest = true, []byte("]")
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// eachService calls f for each service of a pod until f fails. It decodes them one by one, because thousands at once
// take much memory.
func (a agent) eachService(ctx context.Context, f func(v1.Service) error) error {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	body, err := a.client.Stream(ctx, "/v1/services")
	if err != nil {
		return err
	}
	defer body.Close()
	list := json.NewDecoder(body)
	if _, err := list.Token(); err != nil {
		return fmt.Errorf("services of the agent: %w", err)
	}
	for list.More() {
		var s v1.Service
		if err := list.Decode(&s); err != nil {
			return fmt.Errorf("services of the agent: %w", err)
		}
		if s.Metadata.Owner != names.OwnerPods {
			continue
		}
		if err := f(s); err != nil {
			return err
		}
	}
	_, err = list.Token() // a truncated response ends here
	return err
}

// applyServices updates services. Their resourceVersion must be unchanged, since kerb-cni replaces and deletes
// services, too.
func (a agent) applyServices(ctx context.Context, all []v1.Service) error {
	return a.call(ctx, http.MethodPost, "/v1/apply?ifUnchanged=true&owner="+names.OwnerPods, all, nil)
}

func (a agent) delete(ctx context.Context, owner string, refs ...ref) error {
	return a.call(ctx, http.MethodPost, "/v1/delete?owner="+owner, refs, nil)
}

func (a agent) status(ctx context.Context) (s v1.NodeStatus, err error) {
	return s, a.call(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// answered reports whether an error is a response of the agent other than a request to retry. A request with only one
// of the modules may have another result.
func answered(err error) bool {
	var status *client.StatusError
	return errors.As(err, &status) && status.Status != http.StatusTooManyRequests &&
		status.Status != http.StatusServiceUnavailable
}

// refusal returns the agent's reason for rejecting a request, or false if the agent did not evaluate it.
func refusal(err error) (string, bool) {
	var status *client.StatusError
	if errors.As(err, &status) && status.Status < http.StatusInternalServerError &&
		status.Status != http.StatusTooManyRequests {
		return status.Detail(), true
	}
	return "", false
}
