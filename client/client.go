// SPDX-License-Identifier: Apache-2.0

// Package client calls the API of a Kerb agent, over its Unix socket or over HTTPS.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
)

// Client is a client of an agent's API. It is safe for concurrent use.
type Client struct {
	base, token string
	http        *http.Client
}

// New returns a client for the agent that listens on a Unix socket.
func New(socket string) *Client {
	return &Client{base: "http://kerb", http: &http.Client{Transport: Unix(socket)}}
}

// NewHTTPS returns a client for the agent at a URL such as https://node:7188. The token may be empty.
func NewHTTPS(url, token string, config *tls.Config) *Client {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}
	return &Client{base: url, token: token, http: &http.Client{Transport: transport}}
}

// writeBuffer holds most requests, for example 100 firewall rules, so that the agent wakes up once and reads all of it.
const writeBuffer = 16 << 10

// Unix returns a transport that connects to a Unix socket, regardless of the host in the URL, with a new connection for
// each request.
func Unix(socket string) *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, &DialError{err}
		}
		return c, nil
	}
	return &http.Transport{DisableKeepAlives: true, DialContext: dial, WriteBufferSize: writeBuffer}
}

// DialError reports that no agent accepts connections on the socket, so that the request was not received.
type DialError struct{ Err error }

func (e *DialError) Error() string { return e.Err.Error() }

func (e *DialError) Unwrap() error { return e.Err }

// StatusError is an answer with a status other than success.
type StatusError struct {
	Method, Path string
	Status       int
	Body         []byte // application/problem+json (RFC 9457) if the agent itself rejected the request
}

func (e *StatusError) Error() string {
	reason := http.StatusText(e.Status)
	return fmt.Sprintf("%s %s: %d %s: %s", e.Method, e.Path, e.Status, reason, bytes.TrimSpace(e.Body))
}

// Detail returns the agent's description of the error.
func (e *StatusError) Detail() string {
	var problem struct{ Detail string }
	if json.Unmarshal(e.Body, &problem) == nil && problem.Detail != "" {
		return problem.Detail
	}
	return e.Error()
}

// Send sends a request to a path such as /v1/status. The caller closes the body of the answer, whatever its status.
func (c *Client) Send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.http.Do(r)
}

// Stream sends a GET and returns the body of a successful answer, which the caller closes.
func (c *Client) Stream(ctx context.Context, path string) (io.ReadCloser, error) {
	return c.open(ctx, http.MethodGet, path, nil)
}

// Call sends in as JSON, unless it is nil, and decodes the answer into out, unless that is nil.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	var text []byte
	var err error
	if in != nil {
		if text, err = json.Marshal(in); err != nil {
			return err
		}
	}
	body, err := c.open(ctx, method, path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer body.Close()
	if out == nil {
		return nil
	}
	return json.NewDecoder(body).Decode(out)
}

// smallBody is the largest body that Post buffers: the agent queues requests of unknown length together with large
// ones.
const smallBody = 64 << 10

// Post sends a body of up to 64 KiB with its length, and streams a larger one without buffering all of it. It discards
// the body of a successful answer.
func (c *Client) Post(ctx context.Context, path string, body io.Reader) error {
	start, err := io.ReadAll(io.LimitReader(body, smallBody+1))
	if err != nil {
		return err
	}
	if len(start) > smallBody {
		body = io.MultiReader(bytes.NewReader(start), body)
	} else {
		body = bytes.NewReader(start)
	}
	answer, err := c.open(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	return answer.Close()
}

// maxError is the largest error body that is read. It has room for the errors of 10,000 resources.
const maxError = 4 << 20

func (c *Client) open(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	answer, err := c.Send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxError))
	if err != nil {
		return nil, err
	}
	return nil, &StatusError{method, path, answer.StatusCode, text}
}
