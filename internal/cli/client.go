// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/server"
)

// unreachableError says that no agent answers on the socket, and what to do about it.
type unreachableError struct {
	socket string
	cause  error
}

func (e *unreachableError) Error() string {
	if errors.Is(e.cause, fs.ErrPermission) {
		return fmt.Sprintf("you may not use %s: run this as root%s", e.socket, orJoin(e.socket))
	}
	return fmt.Sprintf("no agent answers on %s: start it with %q, or %q as root (%v)", e.socket, "systemctl start kerb", "kerb agent", e.cause)
}

func (e *unreachableError) Unwrap() error { return e.cause }

// orJoin names the group that may use a socket, if there is one beside root's.
func orJoin(socket string) string {
	info, err := os.Stat(socket)
	if err != nil {
		return ""
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Gid == 0 {
		return ""
	}
	group, err := user.LookupGroupId(strconv.Itoa(int(owner.Gid)))
	if err != nil {
		return ""
	}
	return ", or join the group " + group.Name
}

// dialError marks failures to connect among all that an HTTP client can return.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// httpClient speaks HTTP over the socket.
func (a *app) httpClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", a.socket)
			if err != nil {
				return nil, &dialError{err}
			}
			return c, nil
		},
	}}
}

// call makes one request. Errors that the agent answers are *server.Problem.
func (a *app) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://kerb"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := a.httpClient().Do(r)
	var dial *dialError
	if errors.As(err, &dial) {
		return nil, &unreachableError{a.socket, dial.error}
	}
	if err != nil && ctx.Err() != nil {
		return nil, interrupted(method)
	}
	if err != nil {
		return nil, fmt.Errorf("the agent ended before it answered: see what is there when it runs again (%w)", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("the agent's answer broke off: %w", err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		return nil, problem(response, answer)
	}
	return answer, nil
}

// interrupted tells what becomes of a change that nobody waits for any more: it is all or nothing, and goes on.
func interrupted(method string) error {
	if method == http.MethodGet {
		return errors.New("interrupted")
	}
	return errors.New("interrupted; a change that has reached the agent goes on, whole or not at all: see what is there in a moment")
}

func problem(response *http.Response, answer []byte) error {
	var p server.Problem
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json") && json.Unmarshal(answer, &p) == nil {
		return &p
	}
	below, isModule := strings.CutPrefix(response.Request.URL.Path, "/v1/modules/")
	if module, path, ok := strings.Cut(below, "/"); ok && isModule && response.StatusCode == http.StatusNotFound {
		return &noRouteError{module, path}
	}
	return &answerError{response.Status, string(bytes.TrimSpace(answer))}
}

// answerError is an error that comes from something else than the agent itself, such as a module.
type answerError struct{ status, text string }

func (e *answerError) Error() string {
	return fmt.Sprintf("the agent answered %s: %s", e.status, e.text)
}

// fetch reads a view of the agent.
func fetch[T any](ctx context.Context, a *app, path string) (T, error) {
	var v T
	data, err := a.call(ctx, http.MethodGet, path, nil)
	if err == nil {
		err = understand(data, &v)
	}
	return v, err
}

// change makes a request that changes something.
func (a *app) change(ctx context.Context, method, path string, dryRun bool, body any) (v1alpha1.ApplyResult, error) {
	var result v1alpha1.ApplyResult
	data, err := json.Marshal(body)
	if err != nil {
		return result, err
	}
	if dryRun {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path += separator + "dryRun=true"
	}
	data, err = a.call(ctx, method, path, data)
	if err == nil {
		err = understand(data, &result)
	}
	return result, err
}

func understand(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("the agent's answer is not what this kerb expects (is it of another version?): %w", err)
	}
	return nil
}
