// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Compiled is the result of compiling a config.
type Compiled struct {
	sdk.Settings
	Known  bool // false: the control plane leaves the config to the agent
	Filled bool // the maps of the active map set are filled as well
}

// Compile makes the control plane compile a config. An error in the config is a *sdk.ConfigError. If active are the
// maps that the control plane works on, and free has prepared the half that no packet reads, the control plane may fill
// it immediately.
func (p *Supervisor) Compile(ctx context.Context, config json.RawMessage, active sdk.Maps, free func() bool) (
	c Compiled, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, compileTime)
	defer cancel()
	r, err := p.present(ctx)
	if err != nil {
		return c, err
	}
	header := http.Header{}
	if name := p.activeWith(r, active); name != "" && free() {
		header.Set(sdk.FillHeader, name)
	}
	got, err := p.exchange(ctx, r, compileTime, "compile", header, compileRequest(config), &c.Settings)
	var answer *AnswerError
	if errors.As(err, &answer) {
		switch answer.Status {
		case http.StatusNotFound:
			return Compiled{}, nil
		case http.StatusUnprocessableEntity:
			return c, &sdk.ConfigError{Field: answer.Problem.Field, Reason: answer.Problem.Reason}
		}
	}
	if err != nil {
		return c, err
	}
	c.Known, c.Filled = true, got.Get(sdk.FillHeader) != "" && header.Get(sdk.FillHeader) != ""
	return c, checkSettings(c.Settings)
}

// compileRequest is a sdk.CompileRequest whose config is not parsed again.
func compileRequest(config json.RawMessage) []byte {
	return []byte(`{"config":` + cmp.Or(string(config), "null") + "}")
}

// checkSettings rejects invalid settings, and converts numbers to integers.
func checkSettings(s sdk.Settings) error {
	if err := errors.Join(checkNumbers("constant", s.Constants), checkNumbers("tunable", s.Tunables)); err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	for _, direction := range s.Idle {
		if direction != "egress" && direction != "ingress" {
			return fmt.Errorf("compile: idle has %q, which is neither egress nor ingress", direction)
		}
	}
	return nil
}

// checkNumbers replaces each json.Number in values by an int64 or uint64. Booleans stay; anything else is an error,
// because constants and tunables of data planes are integers.
func checkNumbers(kind string, values map[string]any) error {
	for name, value := range values {
		number, isNumber := value.(json.Number)
		if _, isBool := value.(bool); isBool {
			continue
		}
		if !isNumber {
			return fmt.Errorf("%s %s is neither a number nor true or false", kind, name)
		}
		if n, err := strconv.ParseInt(number.String(), 10, 64); err == nil {
			values[name] = n
		} else if n, err := strconv.ParseUint(number.String(), 10, 64); err == nil {
			values[name] = n
		} else {
			return fmt.Errorf("%s %s is %s, which is no integer of 64 bits", kind, name, number)
		}
	}
	return nil
}

// Fill makes the control plane write maps, which the caller keeps: those of a new map set, or the half of the active
// one that no packet reads. The control plane has the maps of the active one already.
func (p *Supervisor) Fill(ctx context.Context, config json.RawMessage, m sdk.Maps) error {
	ctx, cancel := context.WithTimeout(ctx, fillTime)
	defer cancel()
	r, err := p.present(ctx)
	if err != nil {
		return err
	}
	if active := p.activeWith(r, m); active != "" {
		return p.callOptional(ctx, r, fillTime, "fill", sdk.MapSetRequest{MapSet: active, Config: config}, nil)
	}
	name := p.name("fill")
	if err := r.sendMaps(name, m); err != nil {
		return p.failed("fill", err)
	}
	err = p.callOptional(ctx, r, fillTime, "fill", sdk.MapSetRequest{MapSet: name, Config: config}, nil)
	go func() { // if it fails, the control plane keeps the maps open
		_ = p.call(context.WithoutCancel(ctx), r, callTime, "drop", sdk.MapSetRequest{MapSet: name}, nil)
	}()
	return err
}

// activeWith returns the name of the map set that a run works on if these are its maps, otherwise an empty string.
func (p *Supervisor) activeWith(r *run, m sdk.Maps) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != r || p.want == nil || p.startedWith != p.want.name || !maps.Equal(p.want.of, m) {
		return ""
	}
	return p.want.name
}

// Metrics requests the module's metrics. If the control plane does not answer in time, it returns those of the last
// answer, marked stale.
func (p *Supervisor) Metrics(ctx context.Context) (samples []sdk.Sample, stale bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTime)
	defer cancel()
	if r := p.ready(ctx); r != nil {
		err = p.call(ctx, r, metricsTime, "metrics", nil, &samples)
		if err == nil || answered(err, http.StatusNotFound) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.measured = samples
			return samples, false, nil
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.measured, true, err
}

// NoteName requests the name of a value that the data plane noted about a packet; empty if it has none.
func (p *Supervisor) NoteName(ctx context.Context, note string, value uint64) (string, error) {
	p.mu.Lock()
	r := p.run
	p.mu.Unlock()
	if r == nil {
		return "", fmt.Errorf("control plane of module %s does not run", p.module)
	}
	var answer sdk.NoteAnswer
	err := p.call(ctx, r, noteTime, "note", sdk.NoteRequest{Note: note, Value: value}, &answer)
	return cutText(answer.Name), err
}

// present waits for a run, for a moment in case the control plane is just being restarted.
func (p *Supervisor) present(ctx context.Context) (*run, error) {
	for {
		p.mu.Lock()
		r, arrived, state := p.run, p.arrived, p.state
		p.mu.Unlock()
		if r != nil {
			return r, nil
		}
		if state.Restarts > 2 {
			return nil, fmt.Errorf("control plane of module %s does not run: %s", p.module, state.Reason)
		}
		select {
		case <-arrived:
		case <-p.closing:
			return nil, fmt.Errorf("control plane of module %s is closed", p.module)
		case <-ctx.Done():
			return nil, fmt.Errorf("control plane of module %s does not run: %s", p.module, state.Reason)
		}
	}
}

// AnswerError is an answer with a status other than success.
type AnswerError struct {
	Call    string
	Status  int
	Problem sdk.Problem
}

func (e *AnswerError) Error() string {
	text := fmt.Sprintf("%s: the control plane answers %d", e.Call, e.Status)
	if e.Problem.Reason != "" {
		text += ": " + e.Problem.Reason
	}
	return text
}

func (p *Supervisor) failed(call string, err error) error {
	return fmt.Errorf("control plane of module %s: %s: %w", p.module, call, err)
}

// call makes a request of the contract. answer may be nil.
func (p *Supervisor) call(ctx context.Context, r *run, limit time.Duration, name string, body, answer any) error {
	_, err := p.exchange(ctx, r, limit, name, http.Header{}, body, answer)
	return err
}

// exchange is call with headers. A body of type []byte is JSON.
func (p *Supervisor) exchange(ctx context.Context, r *run, limit time.Duration, name string, header http.Header,
	body, answer any,
) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	method, content := http.MethodGet, io.Reader(http.NoBody)
	if body != nil {
		data, isText := body.([]byte)
		if !isText {
			var err error
			if data, err = json.Marshal(body); err != nil {
				return nil, err
			}
		}
		if len(data) > sdk.MaxBody {
			return nil, p.failed(name, fmt.Errorf("the request has %d bytes; at most %d are allowed", len(data), sdk.MaxBody))
		}
		method, content = http.MethodPost, bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://control"+sdk.PathPrefix+name, content)
	if err != nil {
		return nil, err
	}
	header.Set("Content-Type", "application/json")
	req.Header = header
	res, err := r.transport.RoundTrip(req)
	if err != nil {
		return nil, p.failed(name, r.explain(err))
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, sdk.MaxBody+1))
	if err != nil {
		return nil, p.failed(name, r.explain(err))
	}
	return res.Header, p.failedIf(name, decodeAnswer(name, res.StatusCode, data, answer))
}

// failedIf counts a failed health check against the control plane if it did not answer. One that answers with an error
// works, and is not restarted for it.
func (p *Supervisor) failedIf(call string, err error) error {
	var answer *AnswerError
	if err == nil || errors.As(err, &answer) {
		return err
	}
	return p.failed(call, err)
}

// explain prefers the reason why a process ended to the resulting error on its socket.
func (r *run) explain(err error) error {
	select {
	case <-r.ended:
		return r.why
	case <-time.After(100 * time.Millisecond): // the end may be noticed slightly later
		return err
	}
}

var errNotUnderstood = errors.New("the answer cannot be understood")

// decodeAnswer decodes the body of an answer. A status other than 200 and 204 is an *AnswerError; a body that cannot be
// decoded is errNotUnderstood, which a retry does not fix.
func decodeAnswer(name string, status int, data []byte, answer any) error {
	if len(data) > sdk.MaxBody {
		return fmt.Errorf("the answer has more than %d bytes", sdk.MaxBody)
	}
	if status != http.StatusOK && status != http.StatusNoContent {
		e := &AnswerError{Call: name, Status: status}
		_ = json.Unmarshal(data, &e.Problem) // not every library answers with JSON
		return e
	}
	if answer == nil || status == http.StatusNoContent {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	dec.DisallowUnknownFields()
	if err := dec.Decode(answer); err != nil {
		return fmt.Errorf("%w: %w", errNotUnderstood, err)
	}
	return nil
}
