// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// job is the message of the cluster manager to NodeEngine about an instance that this node should start. NodeEngine
// ignores ebpfModules of the SLA; this worker reads the same message, and thus knows the modules when NodeEngine
// deploys the instance.
type job struct {
	Name     string `json:"name"`
	Instance int    `json:"instance"`
	// Modules are decoded at the deployment: decoded values take many times the memory of their text.
	Modules json.RawMessage `json:"modules,omitempty"`
	// Wrong is the reason why the modules cannot be decoded. The instance is then rejected, since it must not run without
	// its firewall.
	Wrong string `json:"wrong,omitempty"`
	// Doubtful is set when a newer message may have been missed.
	Doubtful bool `json:"doubtful,omitempty"`

	worker   string // id of the worker that received it: a message may arrive after NodeEngine has got another id
	prepared bool   // preparation succeeded or failed
}

// Limits of jobs: of the number stored until deployment, of their bytes in the state and in the inbox each, and of the
// bytes of a single one.
const (
	maxJobs       = 256
	maxJobBytes   = 512 << 10
	maxJobModules = 64 << 10
	maxModules    = 16 // of one instance: a control plane takes many times the memory of a module's text
)

// limitJobs removes the oldest jobs beyond the limits, and logs that.
func limitJobs(all []job, log *slog.Logger) []job {
	first, bytes := len(all), 0
	for first > 0 && len(all)-first < maxJobs {
		j := all[first-1]
		if bytes += len(j.Name) + len(j.Modules) + len(j.Wrong); bytes > maxJobBytes {
			break
		}
		first--
	}
	for _, j := range all[:first] {
		log.Warn("the modules of an instance are forgotten, and asked for when it is deployed: too many instances "+
			"have been announced, or are gone without an undeploy, that are not deployed",
			"service", j.Name, "instance", j.Instance)
	}
	return slices.Delete(all, 0, first)
}

// topicJob is the cluster manager's topic below nodes/ID/.
const topicJob = "control/deploy"

// readJob decodes a job as the cluster manager and the resource abstractor encode it. It returns an *invalid if the job
// does not identify an instance; one without a number is of instance 0 if anyInstance is set.
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
	if _, err := readModules(in.Modules); err != nil {
		j.Wrong = err.Error()
	} else {
		j.Modules = in.Modules
	}
	return j, nil
}

// readModules parses ebpfModules of a job. Its size is limited before decoding, because it comes from the network;
// errors name the element.
func readModules(data json.RawMessage) ([]moduleRequest, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if len(data) > maxJobModules {
		return nil, &invalid{"ebpfModules", fmt.Sprintf("has %d bytes, more than %d", len(data), maxJobModules)}
	}
	var all []moduleRequest
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
	return all, checkModules(all)
}

// checkModules returns an *invalid if the modules of an SLA are too many, or one names a file.
func checkModules(all []moduleRequest) error {
	if len(all) > maxModules {
		return &invalid{"ebpfModules", fmt.Sprintf("has %d modules, more than %d", len(all), maxModules)}
	}
	for i, m := range all {
		if err := refuseFile(fmt.Sprintf("ebpfModules[%d].config", i), m.Config); err != nil {
			return err
		}
	}
	return nil
}

// refuseFile returns an *invalid if a config names a file: the agent would read it as root, and a client, or the author
// of the SLA, would choose which.
func refuseFile(field string, config any) error {
	if file := findFile(config); file != "" {
		return &invalid{field + file, "names a file of the node; remove it, or have the node's operator deploy this module " +
			"with kerb apply"}
	}
	return nil
}

// findFile returns the path to a key fromFile in a config, or "".
func findFile(config any) string {
	switch c := config.(type) {
	case map[string]any:
		if _, there := c["fromFile"]; there {
			return ".fromFile"
		}
		for _, key := range slices.Sorted(maps.Keys(c)) {
			if found := findFile(c[key]); found != "" {
				return "." + key + found
			}
		}
	case []any:
		for i := range c {
			if found := findFile(c[i]); found != "" {
				return fmt.Sprintf("[%d]%s", i, found)
			}
		}
	}
	return ""
}

// inbox has received jobs that are not in the state yet, so that messages do not wait for a deployment that holds the
// lock of the state.
type inbox struct {
	mu     sync.Mutex
	all    []job
	missed bool // messages may have been missed: jobs in the state may be outdated
}

func (b *inbox) add(j job, log *slog.Logger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = limitJobs(append(b.all, j), log)
}

// markMissed records that messages may have been missed until now.
func (b *inbox) markMissed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missed = true
	for i := range b.all {
		b.all[i].Doubtful = true
	}
}

func (b *inbox) take() (all []job, missed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all, missed = b.all, b.missed
	b.all, b.missed = nil, false
	return all, missed
}

// keepJobs moves received jobs to the state, keeping the newest of each instance, and saves the state. The caller holds
// l.mu.
func (l *Listener) keepJobs() error {
	came, missed := l.jobs.take()
	came = slices.DeleteFunc(came, func(j job) bool { return j.worker != l.state.Worker })
	changed := len(came) > 0
	for i := range l.state.Jobs {
		if j := &l.state.Jobs[i]; missed && !j.Doubtful {
			j.Doubtful, changed = true, true
		}
	}
	for _, j := range came {
		l.state.dropJob(j.Name, j.Instance)
		l.state.Jobs = append(l.state.Jobs, j)
	}
	if !changed {
		return nil
	}
	l.state.Jobs = limitJobs(l.state.Jobs, l.log)
	return l.save()
}

// handleJob handles a job of the cluster manager.
func (s *session) handleJob(payload []byte) error {
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

// modulesOf returns the modules for an instance. If NodeEngine repeats its request, these are the modules of the
// service. If the message of the cluster manager may have been missed, it requests the job; if that fails, a known
// service keeps its modules.
func (l *Listener) modulesOf(ctx context.Context, in deployment) ([]moduleRequest, error) {
	if in.Modules != nil {
		return in.Modules, nil
	}
	l.mu.Lock()
	err := l.keepJobs()
	j, old, cluster := l.state.job(in.Name, in.Instance), l.state.service(in.Name, in.Instance), l.state.Cluster
	again := old != nil && old.Ready && old.PID == in.PID
	has := l.state.modulesOf(in.Name) // before a sweep can release the service with its modules
	l.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case j == nil && again:
		return has, nil
	case j == nil || j.Doubtful:
		asked, failed := askJob(ctx, l.abstractor(cluster), in)
		if failed == nil || j == nil {
			j, err = asked, failed
		}
	}
	if err == nil {
		var modules []moduleRequest
		if modules, err = j.read(); err != nil {
			return nil, fmt.Errorf("the SLA of the service: %w", err)
		}
		return append([]moduleRequest{}, modules...), nil
	}
	if len(has) > 0 {
		l.log.Warn("a service starts with the modules that it had: those that the SLA demands now are unknown",
			"service", in.Name, "instance", in.Instance, "error", err)
		return has, nil
	}
	if l.options.RequireModules {
		return nil, fmt.Errorf("the modules that the SLA demands are unknown, and oakestra.requireModules is set: %w", err)
	}
	l.log.Warn("a service starts without modules of its SLA, if it has any: set oakestra.requireModules to refuse that",
		"service", in.Name, "instance", in.Instance, "error", err)
	return []moduleRequest{}, nil
}

// read decodes the modules.
func (j job) read() ([]moduleRequest, error) {
	if j.Wrong != "" {
		return nil, errors.New(j.Wrong)
	}
	return readModules(j.Modules)
}

// modulesOf returns the modules of a service, never nil.
func (s *state) modulesOf(name string) []moduleRequest {
	all := []moduleRequest{}
	for _, m := range s.Modules {
		if m.Service == name && m.deployed() {
			all = append(all, moduleRequest{m.Name, m.Config})
		}
	}
	return all
}

// abstractorTimeout is the timeout of requests to the resource abstractor: NodeEngine waits for the deployment.
const abstractorTimeout = 2 * time.Second

// abstractor returns the URL of the cluster's resource abstractor.
func (l *Listener) abstractor(cluster string) string {
	return "http://" + net.JoinHostPort(strings.Trim(cluster, "[]"), fmt.Sprint(l.options.Abstractor))
}

var errNoJob = errors.New("the cluster's resource abstractor has no such service")

// askJob fetches the job of an instance from the cluster's resource abstractor.
func askJob(ctx context.Context, base string, in deployment) (*job, error) {
	ctx, cancel := context.WithTimeout(ctx, abstractorTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/jobs/?job_name="+url.QueryEscape(in.Name), nil)
	if err != nil {
		return nil, err
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // no other host
	got, err := c.Do(r)
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

// hasModules reports whether a service has all modules of want.
func (s *state) hasModules(name string, want []moduleRequest) bool {
	return !slices.ContainsFunc(want, func(w moduleRequest) bool {
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
	j := s.Jobs[i] // a copy, since the state may change while it is used
	return &j
}

// storeModulesAsJob converts the modules of a removed service back to a job, since NodeEngine may not have received the
// response to the deployment, and repeat it. The job is marked as doubtful, since the SLA may have changed by then.
func (l *Listener) storeModulesAsJob(gone service) error {
	has := l.state.modulesOf(gone.Name)
	if !gone.Ready || len(has) == 0 || l.state.job(gone.Name, gone.Instance) != nil {
		return nil
	}
	data, err := json.Marshal(has)
	if err != nil {
		return err
	}
	l.state.Jobs = limitJobs(slices.Insert(l.state.Jobs, 0, // dropped before announced jobs
		job{Name: gone.Name, Instance: gone.Instance, Modules: data, Doubtful: true}), l.log)
	return nil
}

// removeJob removes the job of an instance that is deployed already.
func (l *Listener) removeJob(in deployment) error {
	if l.state.job(in.Name, in.Instance) == nil {
		return nil
	}
	l.state.dropJob(in.Name, in.Instance)
	return l.save()
}

func (s *state) dropJob(name string, instance int) {
	s.Jobs = slices.DeleteFunc(s.Jobs, func(j job) bool { return j.Name == name && j.Instance == instance })
}
