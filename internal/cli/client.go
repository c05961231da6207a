// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/server"
)

// unreachableError reports that no agent is reachable, with a remedy.
type unreachableError struct {
	socket string // or the URL of an agent of another node
	cause  error
}

func (e *unreachableError) Error() string {
	if strings.HasPrefix(e.socket, "https://") {
		return fmt.Sprintf("no agent answers on %s: %v%s", e.socket, e.cause, remedy(e.cause))
	}
	if errors.Is(e.cause, fs.ErrPermission) {
		return fmt.Sprintf("you may not use %s: run this as root%s", e.socket, orJoinGroup(e.socket))
	}
	return fmt.Sprintf("no agent answers on %s: start it with %q, or %q as root (%v)", e.socket, "systemctl start kerb",
		"kerb agent", e.cause)
}

func (e *unreachableError) Unwrap() error { return e.cause }

// remedy returns what to do about a failed TLS handshake.
func remedy(err error) string {
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "; name the authority of its certificate: kerb context set --ca, or KERB_CA"
	case errors.As(err, new(x509.HostnameError)):
		return "; use a name or an address that its certificate has"
	case strings.Contains(err.Error(), "tls: certificate required"):
		return "; it wants a client certificate: kerb context set --certificate --key, or KERB_CERTIFICATE and KERB_KEY"
	}
	return ""
}

// orJoinGroup suggests the group that may use the socket, unless it is root.
func orJoinGroup(socket string) string {
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

// call makes one request. Errors from the agent are *server.Problem.
func (a *app) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	response, err := a.request(ctx, method, path, bytes.NewReader(body))
	if errors.As(err, new(*unreachableError)) || errors.As(err, new(*endpointError)) {
		return nil, err
	}
	if err != nil && ctx.Err() != nil {
		return nil, interrupted(method)
	}
	if err != nil {
		return nil, fmt.Errorf("the agent exited before it replied: once it is running again, check whether the change was "+
			"applied (%w)", err)
	}
	defer response.Body.Close()
	answer, err := readAnswer(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return nil, problem(response, answer)
	}
	return answer, nil
}

// request sends a request to the selected agent.
func (a *app) request(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	e, err := a.agentEndpoint()
	if err != nil {
		return nil, &endpointError{err}
	}
	response, err := e.client.Send(ctx, method, path, body)
	var dial *client.DialError
	var url *url.Error
	switch {
	case errors.As(err, &dial):
		return nil, &unreachableError{e.name, dial.Err}
	case !e.socket && errors.As(err, &url) && ctx.Err() == nil:
		return nil, &unreachableError{e.name, url.Err}
	}
	return response, err
}

// endpointError is an error in the selection of the agent.
type endpointError struct{ error }

func (e *endpointError) Unwrap() error { return e.error }

// maxAnswer limits responses, since those of modules may be endless. Responses of the agent are smaller.
const maxAnswer = 64 << 20

// readAnswer reads the whole response, up to maxAnswer bytes.
func readAnswer(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("the agent's answer broke off: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("the answer has more than %d MiB; read it with curl --unix-socket if it is meant "+
			"to be so long", maxAnswer>>20)
	}
	return data, nil
}

// interrupted returns the error of an interrupted request: the agent completes a change after its client has
// disconnected, all or nothing.
func interrupted(method string) error {
	if method == http.MethodGet {
		return errors.New("interrupted")
	}
	return errors.New("interrupted: if the agent already received the change it is still applied, all or nothing; check " +
		"with kerb status")
}

// problem returns the error in a response: the agent's problem document (RFC 9457) if there is one. A 404 below
// /v1/modules/NAME/ means that the module lacks the route; all else comes from a proxy or another program.
func problem(response *http.Response, answer []byte) error {
	var p server.Problem
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json") &&
		json.Unmarshal(answer, &p) == nil {
		return &p
	}
	below, isModule := strings.CutPrefix(response.Request.URL.Path, "/v1/modules/")
	if module, path, ok := strings.Cut(below, "/"); ok && isModule && response.StatusCode == http.StatusNotFound {
		return &noRouteError{module, path}
	}
	return &answerError{response.Status, string(bytes.TrimSpace(answer))}
}

// answerError is an error that does not come from the agent itself, but for example from a module.
type answerError struct{ status, text string }

func (e *answerError) Error() string {
	return fmt.Sprintf("the agent answered %s: %s", e.status, e.text)
}

// fetch reads an object from the agent.
func fetch[T any](ctx context.Context, a *app, path string) (v T, err error) {
	err = a.read(ctx, path, &v)
	return v, err
}

// read is fetch without a type parameter, so that the binary contains its code once.
func (a *app) read(ctx context.Context, path string, v any) error {
	data, err := a.call(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return decodeAnswer(data, v)
}

// eachLine calls do for each value of a stream until it ends.
func eachLine[T any](stream io.Reader, do func(T) error) error {
	for lines := json.NewDecoder(stream); ; {
		var l T
		err := lines.Decode(&l)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unexpected response from the agent: %w", err)
		}
		if err := do(l); err != nil {
			return err
		}
	}
}

// show reads an object from the agent and prints it, by default with table.
func show[T any](cmd *cobra.Command, a *app, path string, table func(io.Writer, T)) error {
	v, err := fetch[T](cmd.Context(), a, path)
	if err != nil {
		return err
	}
	return a.print(cmd.OutOrStdout(), v, func(w io.Writer) { table(w, v) })
}

// send makes a request with a body, and decodes the response into v.
func (a *app) send(ctx context.Context, method, path string, body, v any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if data, err = a.call(ctx, method, path, data); err != nil {
		return err
	}
	return decodeAnswer(data, v)
}

// change makes a request that changes resources.
func (a *app) change(ctx context.Context, method, path string, dryRun bool,
	body any) (result v1alpha1.ApplyResult, err error) {
	if dryRun {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path += separator + "dryRun=true"
	}
	err = a.send(ctx, method, path, body, &result)
	return result, err
}

// changeAndPrint makes a request that changes resources, and prints the result.
func (a *app) changeAndPrint(cmd *cobra.Command, method, path string, dryRun bool, body any) error {
	result, err := a.change(cmd.Context(), method, path, dryRun, body)
	if err != nil {
		return err
	}
	return a.printResult(cmd, result)
}

func decodeAnswer(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("unexpected response from the agent (is it a different version?): %w", err)
	}
	return nil
}
