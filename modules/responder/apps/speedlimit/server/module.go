// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit"
)

// Module speaks with the responder module through the agent.
type Module struct {
	base     string
	listener string
	http     *http.Client
	silent   atomic.Int64 // until when nothing is asked of it, in Unix nanoseconds
}

// NewModule is the module of that name on the agent's socket, and a listener of it.
func NewModule(socket, name, listener string) *Module {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Module{base: "http://kerb/v1/modules/" + url.PathEscape(name) + "/", listener: listener,
		http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// answer of a module's routes: a listener with its state.
type stateAnswer struct {
	State speedlimit.State `json:"state"`
}

// add reports cars and returns the state then; nil if the module does not answer.
func (m *Module) add(ctx context.Context, cars int64) *speedlimit.State {
	if time.Now().UnixNano() < m.silent.Load() {
		return nil
	}
	state, err := m.put(ctx, fmt.Sprintf(`{"add": %d}`, cars))
	if err != nil {
		m.silent.Store(time.Now().Add(retry).UnixNano())
		slog.Debug("the module does not answer", "error", err)
		return nil
	}
	return state
}

// put sends the state to the module and returns the state that the module then has. The request is given up after
// retry.
func (m *Module) put(ctx context.Context, body string) (*speedlimit.State, error) {
	ctx, cancel := context.WithTimeout(ctx, retry)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, m.base+"state/"+url.PathEscape(m.listener),
		bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	response, err := m.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s", response.Status)
	}
	var a stateAnswer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return nil, err
	}
	return &a.State, nil
}

// follow gives the states that the module sends to learn, until ctx ends. A stream that ends is begun again: states are
// totals, so that nothing is missed. again: the state is the first of another stream.
func (m *Module) follow(ctx context.Context, learn func(_ context.Context, _ speedlimit.State, again bool)) {
	another := false
	for ctx.Err() == nil {
		first := true
		err := m.stream(ctx, func(ctx context.Context, state speedlimit.State) {
			learn(ctx, state, another && first)
			first, another = false, true
		})
		if err != nil && ctx.Err() == nil {
			slog.Debug("no events of the module", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// stream calls learn for each state that the module sends, until the connection or ctx ends. Each message resets the
// time of silence.
func (m *Module) stream(ctx context.Context, learn func(context.Context, speedlimit.State)) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.base+"events?listener="+url.QueryEscape(m.listener), nil)
	if err != nil {
		return err
	}
	response, err := m.http.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", response.Status)
	}
	for lines := json.NewDecoder(response.Body); ; {
		var a stateAnswer
		if err := lines.Decode(&a); err != nil {
			return err
		}
		m.silent.Store(0)
		learn(ctx, a.State)
	}
}
