// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/client"
)

// container is what the runtime knows of one: the part of Docker's API that is of use
// (https://docs.docker.com/reference/api/engine/, operation ContainerInspect).
type container struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Running bool
		Pid     int
	}
	Config struct {
		Image  string
		Labels map[string]string
	}
	HostConfig      struct{ NetworkMode string }
	NetworkSettings struct{ SandboxKey string } // path of the network namespace; some runtimes leave it out
}

// name is what the user calls it. The API puts a slash before it.
func (c container) name() string { return strings.TrimPrefix(c.Name, "/") }

// runtime is the API of a container runtime.
type runtime struct{ client *http.Client }

func newRuntime(socket string) *runtime {
	return &runtime{&http.Client{Transport: client.Unix(socket)}}
}

// Limits of what is read from the runtime.
const (
	askTime   = 30 * time.Second
	mostBytes = 64 << 20 // of a list
	mostKept  = 1024     // events that wait
)

func (r *runtime) get(ctx context.Context, path string) (*http.Response, error) {
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

// ask decodes the answer into out. It reports false if there is no such thing.
func (r *runtime) ask(ctx context.Context, path string, out any) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	answer, err := r.get(ctx, path)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return true, json.NewDecoder(io.LimitReader(answer.Body, mostBytes)).Decode(out)
	case http.StatusNotFound:
		return false, nil
	}
	return false, fmt.Errorf("GET %s: %s", path, answer.Status)
}

// running returns the ids of the containers that run.
func (r *runtime) running(ctx context.Context) (ids []string, err error) {
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

// inspect returns the zero container if it is gone.
func (r *runtime) inspect(ctx context.Context, id string) (c container, err error) {
	_, err = r.ask(ctx, "/containers/"+url.PathEscape(id)+"/json", &c)
	return c, err
}

// events sends the id of each container that starts, ends or changes, until ctx or the stream ends. What happens inside
// one, such as a health check every second, is left out.
func (r *runtime) events(ctx context.Context) (<-chan string, error) {
	answer, err := r.get(ctx, "/events?filters="+url.QueryEscape(`{"type":["container"]}`))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("GET /events: %s", answer.Status)
	}
	out := make(chan string, mostKept)
	go func() {
		defer close(out)
		defer answer.Body.Close()
		for stream := json.NewDecoder(answer.Body); ; {
			var event struct {
				Action string
				Actor  struct{ ID string }
			}
			if stream.Decode(&event) != nil {
				return
			}
			if strings.HasPrefix(event.Action, "exec") || strings.HasPrefix(event.Action, "health") {
				continue
			}
			select {
			case out <- event.Actor.ID:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
