// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/client"
)

// container has the used fields of a container in Docker's API (https://docs.docker.com/reference/api/engine/,
// operation ContainerInspect).
type container struct {
	ID        string `json:"Id"`
	Namespace string `json:"-"` // of containerd
	Name      string
	State     struct {
		Running bool
		Pid     int
	}
	Config struct {
		Image  string
		Labels map[string]string
	}
	HostConfig      struct{ NetworkMode string }
	NetworkSettings struct{ SandboxKey string } // path of the network namespace; some runtimes omit it

	hook      bool   // the hook has reported its start before its first process
	startTime string // with hook: start time of its first process, to detect a reused PID; empty: unknown
}

// name returns the name, without the slash with which the API prefixes it.
func (c container) name() string { return strings.TrimPrefix(c.Name, "/") }

// runtime is the API of a container runtime.
type runtime interface {
	// running returns the ids of the running containers.
	running(context.Context) ([]string, error)
	// inspect returns the zero container if it does not exist.
	inspect(ctx context.Context, id string) (container, error)
	// created returns all containers, of which only id, name and labels need to be set.
	created(context.Context) ([]container, error)
	// events sends events until the context or the stream ends.
	events(context.Context) (<-chan event, error)
}

// event is the start, end or change of a container. The event of its creation has its labels: while a container starts,
// Podman does not respond to requests about it.
type event struct {
	id        string
	gone      bool // the container has been removed
	container      // id, name and labels, or the zero value
}

func newRuntime(o Options) runtime {
	if o.Runtime == "containerd" {
		return containerd{grpc{o.Socket}}
	}
	return &engine{&http.Client{Transport: client.Unix(o.Socket)}}
}

// engine is the API of Docker, and of Podman, which is compatible with it.
type engine struct{ client *http.Client }

// Limits of data from the runtime.
const (
	askTime      = 30 * time.Second
	maxListBytes = 64 << 20 // of a list
	maxEvents    = 1024     // queued events
)

func (r *engine) get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://runtime"+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := r.client.Do(request)
	var dial *client.DialError
	if errors.As(err, &dial) {
		return nil, dial // its text has the path of the socket
	}
	return answer, err
}

// ask decodes a response into out. It reports false for status 404.
func (r *engine) ask(ctx context.Context, path string, out any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	answer, err := r.get(ctx, path)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return true, json.NewDecoder(io.LimitReader(answer.Body, maxListBytes)).Decode(out)
	case http.StatusNotFound:
		return false, nil
	}
	return false, fmt.Errorf("GET %s: %s", path, answer.Status)
}

func (r *engine) running(ctx context.Context) (ids []string, err error) {
	var list []struct {
		ID string `json:"Id"`
	}
	if _, err := r.ask(ctx, "/containers/json", &list); err != nil {
		return nil, err
	}
	for _, c := range list {
		ids = append(ids, c.ID)
	}
	return ids, nil
}

func (r *engine) inspect(ctx context.Context, id string) (c container, err error) {
	_, err = r.ask(ctx, "/containers/"+url.PathEscape(id)+"/json", &c)
	return c, err
}

func (r *engine) created(ctx context.Context) (all []container, err error) {
	var list []struct {
		ID     string `json:"Id"`
		Names  []string
		Labels map[string]string
	}
	if _, err := r.ask(ctx, "/containers/json?all=1", &list); err != nil {
		return nil, err
	}
	for _, one := range list {
		c := container{ID: one.ID}
		if len(one.Names) > 0 {
			c.Name = one.Names[0]
		}
		c.Config.Labels = one.Labels
		all = append(all, c)
	}
	return all, nil
}

// events omits events inside containers, such as a health check every second. It starts a minute in the past: a
// container may have been created, and wait for its hook, while the integration was not running.
func (r *engine) events(ctx context.Context) (<-chan event, error) {
	answer, err := r.get(ctx, fmt.Sprintf("/events?since=%d&filters=%s", time.Now().Add(-relist).Unix(),
		url.QueryEscape(`{"type":["container"]}`)))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("GET /events: %s", answer.Status)
	}
	out := make(chan event, maxEvents)
	go func() {
		defer close(out)
		defer answer.Body.Close()
		for stream := json.NewDecoder(answer.Body); ; {
			var one engineEvent
			if stream.Decode(&one) != nil {
				return
			}
			if strings.HasPrefix(one.Action, "exec") || strings.HasPrefix(one.Action, "health") {
				continue
			}
			select {
			case out <- one.event():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

type engineEvent struct {
	Action string
	Actor  struct {
		ID         string
		Attributes map[string]string
	}
}

// event decodes the attributes: the labels, and among them the name and the image.
func (e engineEvent) event() event {
	out := event{id: e.Actor.ID, gone: e.Action == "destroy" || e.Action == "remove"}
	if name := e.Actor.Attributes["name"]; name != "" && !out.gone {
		out.ID, out.Name, out.Config.Labels = e.Actor.ID, name, maps.Clone(e.Actor.Attributes)
		for _, added := range []string{"name", "image", "exitCode", "containerExitCode", "oldName", "signal",
			"podId"} {
			delete(out.Config.Labels, added)
		}
	}
	return out
}
