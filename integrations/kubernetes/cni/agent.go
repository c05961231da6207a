// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// agent calls the API of an agent. It speaks HTTP/1.0, in which an answer ends with its connection: package client,
// with net/http, would double the size of a program that runs for each pod.
type agent struct{ socket string }

// HTTP statuses that determine the plugin's behaviour.
const (
	statusOK                 = 200
	statusMultipleChoices    = 300
	statusNotFound           = 404
	statusPreconditionFailed = 412
	statusTooMany            = 429
	statusInternal           = 500
)

// maxAnswer is more than the services of a node are long.
const maxAnswer = 64 << 20

// unreachable is the error of a request without a response: the agent may have executed it or not.
type unreachable struct {
	socket string
	cause  error
}

func (e *unreachable) Error() string {
	return fmt.Sprintf("the agent does not answer on %s: %v; start it: systemctl start kerb", e.socket, e.cause)
}

func (e *unreachable) Unwrap() error { return e.cause }

// refused is an answer other than success.
type refused struct {
	status int
	detail string
}

func (e *refused) Error() string { return "the agent refuses: " + e.detail }

func isStatus(err error, status int) bool {
	var r *refused
	return errors.As(err, &r) && r.status == status
}

// request is a request to the agent, with header fields such as "If-None-Match: *".
type request struct {
	method, path, header string
	body                 any // nil for none
}

// call sends a request and decodes the answer into out, unless that is nil.
func (a agent) call(ctx context.Context, r request, out any) error {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", a.socket)
	if err != nil {
		return &unreachable{a.socket, err}
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if err := r.send(c); err != nil {
		return &unreachable{a.socket, err}
	}
	status, body, err := receive(c)
	switch {
	case err != nil:
		return &unreachable{a.socket, err}
	case status < statusOK || status >= statusMultipleChoices:
		return &refused{status, detail(status, body)}
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil { // also an answer that was cut off
		return &unreachable{a.socket, err}
	}
	return nil
}

// send writes the request as HTTP/1.0, so that the agent closes the connection after its answer. Head and body are one
// write.
func (r request) send(w io.Writer) error {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return err
		}
	}
	head := r.method + " " + r.path + " HTTP/1.0\r\nHost: kerb\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n"
	if r.header != "" {
		head += r.header + "\r\n"
	}
	_, err := w.Write(append([]byte(head+"\r\n"), body...))
	return err
}

// receive reads an answer up to the end of the connection.
func receive(from io.Reader) (status int, body []byte, err error) {
	r := bufio.NewReader(from)
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, nil, err
	}
	if _, err := fmt.Sscanf(line, "HTTP/1.%d %d", new(int), &status); err != nil {
		return 0, nil, fmt.Errorf("no HTTP: %.40q", line)
	}
	for strings.TrimSpace(line) != "" {
		if line, err = r.ReadString('\n'); err != nil {
			return 0, nil, err
		}
	}
	body, err = io.ReadAll(io.LimitReader(r, maxAnswer))
	return status, body, err
}

// detail returns the detail of a problem (RFC 9457), or the whole response.
func detail(status int, body []byte) string {
	var problem struct{ Detail string }
	if json.Unmarshal(body, &problem) == nil && problem.Detail != "" {
		return problem.Detail
	}
	return fmt.Sprintf("status %d: %.200s", status, strings.TrimSpace(string(body)))
}
