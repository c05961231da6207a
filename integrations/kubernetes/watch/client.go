// SPDX-License-Identifier: Apache-2.0

// Package watch lists and watches objects of a Kubernetes API server over plain HTTP, and keeps only the used fields in
// memory: client-go's typed clients alone would take more than the whole program.
package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// StatusError is an error response of the API server.
type StatusError struct {
	Code    int
	Reason  string
	Message string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the API server answers %d %s: %s", e.Code, e.Reason, e.Message)
}

// IsStatus reports whether an error is a response with this code.
func IsStatus(err error, code int) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == code
}

// maxErrorBody is how much is read of an answer that is an error.
const maxErrorBody = 16 << 10

// open sends a request and returns the body of a successful answer, which the caller closes.
func (c *Client) open(ctx context.Context, method, path string, body []byte, header ...string) (io.ReadCloser, error) {
	answer, err := c.current().send(ctx, method, path, body, header...)
	if err != nil {
		c.count.request(method, "error")
		return nil, err
	}
	c.count.request(method, strconv.Itoa(answer.StatusCode))
	if answer.StatusCode < http.StatusMultipleChoices {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxErrorBody))
	if err != nil {
		return nil, err
	}
	status := &StatusError{Message: strings.TrimSpace(string(text))}
	_ = json.Unmarshal(text, status) // a Status object; a proxy answers with text
	status.Code = answer.StatusCode
	return nil, status
}

func (c *Client) send(ctx context.Context, method, path string, body []byte, header ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", filepath.Base(os.Args[0]))
	r.Header.Set("Accept", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	token := c.token
	if c.tokenFile != "" {
		text, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return c.http.Do(r)
}

// Get decodes an object.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.call(ctx, http.MethodGet, path, nil, out)
}

// Create creates an object in a collection.
func (c *Client) Create(ctx context.Context, path string, in, out any) error {
	return c.call(ctx, http.MethodPost, path, in, out, "Content-Type", "application/json")
}

// Merge changes an object by a JSON merge patch.
func (c *Client) Merge(ctx context.Context, path string, in, out any) error {
	return c.call(ctx, http.MethodPatch, path, in, out, "Content-Type", "application/merge-patch+json")
}

// Replace replaces an object by one with the resource version that was read.
func (c *Client) Replace(ctx context.Context, path string, in, out any) error {
	return c.call(ctx, http.MethodPut, path, in, out, "Content-Type", "application/json")
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, path string) error {
	return c.call(ctx, http.MethodDelete, path, nil, nil)
}

// call sends in as JSON, unless it is nil, and decodes the answer into out, unless that is nil. Errors name the method
// and the path.
func (c *Client) call(ctx context.Context, method, path string, in, out any, header ...string) error {
	var text []byte
	if in != nil {
		var err error
		if text, err = json.Marshal(in); err != nil {
			return err
		}
	}
	body, err := c.open(ctx, method, path, text, header...)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}
