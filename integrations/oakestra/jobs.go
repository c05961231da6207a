// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// job is what the cluster manager tells NodeEngine of an instance that this node is to start. NodeEngine ignores
// ebpfModules of the SLA; this worker reads the same message, and has the modules when NodeEngine deploys the instance.
type job struct {
	Name     string   `json:"name"`
	Instance int      `json:"instance"`
	Modules  []wanted `json:"modules,omitempty"`
	// Wrong is why the modules cannot be read. The instance is refused then: it must not run without its firewall.
	Wrong string `json:"wrong,omitempty"`
}

// Limits of jobs: of one that are kept until they are deployed, and of what one may ask for.
const (
	maxJobs       = 256
	maxJobModules = 64 << 10
)

// topicJob is the cluster manager's topic below nodes/ID/.
const topicJob = "control/deploy"

// readJob decodes a job as the cluster manager and the resource abstractor write it. It returns an *invalid if the
// job does not say which instance it is of; one without a number is of instance 0 if any is allowed.
func readJob(data []byte, anyInstance bool) (job, error) {
	var in struct {
		Name     string          `json:"job_name"`
		Instance *int            `json:"instance_number"`
		Modules  json.RawMessage `json:"ebpfModules"`
	}
	if err := decode(data, &in); err != nil {
		return job{}, err
	}
	if in.Instance == nil && anyInstance {
		in.Instance = new(int)
	}
	switch {
	case (deployment{Name: in.Name}).check() != nil:
		return job{}, &invalid{"job_name", fmt.Sprintf("%.200q is not app.namespace.service.namespace", in.Name)}
	case in.Instance == nil || *in.Instance < 0:
		return job{}, &invalid{"instance_number", "missing or negative"}
	}
	j := job{Name: in.Name, Instance: *in.Instance}
	var err error
	if j.Modules, err = readModules(in.Modules); err != nil {
		j.Wrong = err.Error()
	}
	return j, nil
}

func readModules(data json.RawMessage) ([]wanted, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if len(data) > maxJobModules {
		return nil, &invalid{"ebpfModules", fmt.Sprintf("has %d bytes, more than %d", len(data), maxJobModules)}
	}
	var all []wanted
	err := decode(data, &all)
	var wrong *invalid
	if errors.As(err, &wrong) {
		return nil, &invalid{"ebpfModules", wrong.Error()}
	}
	for i, m := range all {
		if _, ok := m.Config.(map[string]any); !ok && m.Config != nil {
			return nil, &invalid{fmt.Sprintf("ebpfModules[%d].config", i), "is not an object"}
		}
		if m.Name == "" {
			return nil, &invalid{fmt.Sprintf("ebpfModules[%d].name", i), "missing"}
		}
	}
	return all, nil
}

// inbox are jobs that have come and are not in the state yet. Messages must not wait for a deployment that holds the
// state.
type inbox struct {
	mu  sync.Mutex
	all []job
}

func (b *inbox) add(j job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, j)
	if len(b.all) > maxJobs {
		b.all = slices.Delete(b.all, 0, len(b.all)-maxJobs)
	}
}

func (b *inbox) take() []job {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.all
	b.all = nil
	return all
}

// keepJobs moves what has come into the state, and the state into the file; l.mu is held. The newest of an instance
// counts.
func (l *Listener) keepJobs() error {
	came := l.jobs.take()
	for _, j := range came {
		l.state.dropJob(j.Name, j.Instance)
		l.state.Jobs = append(l.state.Jobs, j)
	}
	if len(came) == 0 {
		return nil
	}
	if over := len(l.state.Jobs) - maxJobs; over > 0 {
		l.state.Jobs = slices.Delete(l.state.Jobs, 0, over)
	}
	return l.save()
}

// takeJob takes a job of the cluster manager.
func (s *session) takeJob(payload []byte) error {
	j, err := readJob(payload, false)
	if err != nil {
		return err
	}
	s.onJob(j)
	if j.Wrong != "" {
		return &invalid{"ebpfModules", j.Wrong + "; the instance is refused"}
	}
	return nil
}

// modulesOf returns the modules that an instance is to have. Nil means those that it has: NodeEngine asks again. If the
// message of the cluster manager may have been missed, the job is asked for.
func (l *Listener) modulesOf(ctx context.Context, in deployment) ([]wanted, error) {
	if in.Modules != nil {
		return in.Modules, nil
	}
	l.mu.Lock()
	err := l.keepJobs()
	j, old, cluster := l.state.job(in.Name, in.Instance), l.state.service(in.Name, in.Instance), l.state.Cluster
	again := old != nil && old.Ready && old.PID == in.PID
	l.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case j == nil && again:
		return nil, nil
	case j == nil:
		j, err = askJob(ctx, l.abstractor(cluster), in)
	}
	switch {
	case err == nil && j.Wrong != "":
		return nil, fmt.Errorf("the SLA of the service: %s", j.Wrong)
	case err == nil:
		return append([]wanted{}, j.Modules...), nil
	case l.options.RequireModules:
		return nil, fmt.Errorf("the modules that the SLA demands are unknown, and oakestra.requireModules is set: %w", err)
	}
	l.log.Warn("a service starts without modules of its SLA, if it has any: set oakestra.requireModules to refuse that",
		"service", in.Name, "instance", in.Instance, "error", err)
	return []wanted{}, nil
}

// askLimit is for the resource abstractor: NodeEngine waits for the deployment.
const askLimit = 2 * time.Second

// abstractor is the cluster's resource abstractor.
func (l *Listener) abstractor(cluster string) string {
	return "http://" + net.JoinHostPort(strings.Trim(cluster, "[]"), fmt.Sprint(l.options.Abstractor))
}

var errNoJob = errors.New("the cluster's resource abstractor does not know the service")

// askJob fetches the job of an instance from the cluster's resource abstractor.
func askJob(ctx context.Context, base string, in deployment) (*job, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/jobs/?job_name="+url.QueryEscape(in.Name), nil)
	if err != nil {
		return nil, err
	}
	got, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return nil, fmt.Errorf("the cluster's resource abstractor: %w", err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the cluster's resource abstractor answers %s", got.Status)
	}
	data, err := io.ReadAll(io.LimitReader(got.Body, maxMessage+1))
	var all []json.RawMessage
	if err == nil {
		err = decode(data, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("the cluster's resource abstractor: %w", err)
	}
	for _, one := range all {
		if j, err := readJob(one, true); err == nil && j.Name == in.Name {
			j.Instance = in.Instance
			return &j, nil
		}
	}
	return nil, errNoJob
}

// hasModules reports whether a service has all that is wanted of it; nil is what it has.
func (s *state) hasModules(name string, want []wanted) bool {
	return !slices.ContainsFunc(want, func(w wanted) bool {
		return !slices.ContainsFunc(s.Modules, func(m module) bool {
			return m.Service == name && m.Name == w.Name && reflect.DeepEqual(m.Config, w.Config)
		})
	})
}

func (s *state) job(name string, instance int) *job {
	i := slices.IndexFunc(s.Jobs, func(j job) bool { return j.Name == name && j.Instance == instance })
	if i < 0 {
		return nil
	}
	j := s.Jobs[i] // the state may change while it is used
	return &j
}

func (s *state) dropJob(name string, instance int) {
	s.Jobs = slices.DeleteFunc(s.Jobs, func(j job) bool { return j.Name == name && j.Instance == instance })
}
