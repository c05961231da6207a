// SPDX-License-Identifier: Apache-2.0

// Package models holds the models of the node: it checks their documents, sends them to control planes, and records
// which modules use each.
package models

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/watch"
	"github.com/kerb-edge/kerb/sdk"
)

// Reasons of a model's condition Ready.
const (
	ReasonNotUsed = "NotUsed" // no module references it
	ReasonInUse   = "InUse"
	ReasonPending = "Pending" // an update is in progress
	ReasonRefused = "Refused" // a module's config names it, and the module cannot use it
)

// Table holds the models of the node.
type Table struct {
	log *slog.Logger

	mu            sync.Mutex
	models        map[string]*entry
	subscriptions []*Subscription
	changed       func(name string) // may be nil
}

type entry struct {
	model   v1.Model
	summary v1.ModelSummary
}

// NewTable returns an empty table.
func NewTable(log *slog.Logger) *Table { return &Table{log: log, models: map[string]*entry{}} }

// Apply adds, changes and removes models that have passed Check.
func (t *Table) Apply(put []v1.Model, remove []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range remove {
		delete(t.models, name)
		t.notify(name)
	}
	for _, m := range put {
		summary, err := Summarize(m.Spec)
		if err != nil { // an older build has accepted it
			t.log.Error("model", "name", m.Metadata.Name, "error", err)
		}
		t.models[m.Metadata.Name] = &entry{model: m, summary: summary}
		t.notify(m.Metadata.Name)
	}
}

// OnChange registers f, which is called with the name of each model whose conditions may have changed, with the table's
// lock held. Call it before any other method.
func (t *Table) OnChange(f func(name string)) { t.changed = f }

func (t *Table) notify(name string) {
	source{t}.Changed(name)
	for _, s := range t.subscriptions {
		delete(s.using, name)
		delete(s.refused, name)
		s.Notify(name)
	}
}

// Names returns the names of the models, sorted.
func (t *Table) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return source{t}.All()
}

// Status returns the status of a model; nil if there is none of that name.
func (t *Table) Status(name string) *v1.ModelStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.models[name]
	if e == nil {
		return nil
	}
	status := &v1.ModelStatus{Summary: e.summary}
	ready := v1.Condition{Type: "Ready", Status: "True", Reason: ReasonNotUsed, Message: "no module uses it"}
	for _, sub := range t.subscriptions {
		switch pending := sub.Pending(name); {
		case sub.refused[name] != "":
			ready.Status, ready.Reason, ready.Message = "False", ReasonRefused,
				fmt.Sprintf("module %s: %s", sub.Module, sub.refused[name])
		case pending != "" && ready.Status == "True":
			ready.Status, ready.Reason, ready.Message = "False", ReasonPending, fmt.Sprintf("module %s: %s", sub.Module, pending)
		case pending == "" && sub.using[name] && !slices.Contains(status.Modules, sub.Module):
			status.Modules = append(status.Modules, sub.Module)
		}
	}
	slices.Sort(status.Modules)
	if ready.Status == "True" && len(status.Modules) > 0 {
		ready.Reason, ready.Message = ReasonInUse, ""
	}
	status.Conditions = []v1.Condition{ready}
	return status
}

// source is a table as subscriptions read it. Documents are encoded when they are sent, so that memory holds them once.
type source struct{ *Table }

func (t source) All() []string { return slices.Sorted(maps.Keys(t.models)) }

func (t source) Encode(name string) json.RawMessage {
	e := t.models[name]
	if e == nil {
		return nil
	}
	data, err := json.Marshal(sdk.Model{Name: name, Generation: e.model.Metadata.Generation,
		Document: json.RawMessage(e.model.Spec.Document)})
	if err != nil { // of a document that was checked
		t.log.Error("model", "name", name, "error", err)
		return nil
	}
	return data
}

func (t source) Changed(names ...string) {
	for _, name := range names {
		if t.changed != nil {
			t.changed(name)
		}
	}
}

// Subscription is what one control plane has received of a table, and which models it uses.
type Subscription struct {
	*watch.Subscription
	table   *Table
	using   map[string]bool // guarded by the table's lock
	refused map[string]string
}

// Update is an sdk.ModelUpdate with the response to it.
type Update struct {
	watch.Update
	response sdk.ModelAnswer
}

// Response is what the control plane's response is decoded into.
func (u *Update) Response() any { return &u.response }

// Subscribe returns a subscription for the control plane of a module. It starts with all models.
func (t *Table) Subscribe(module string) *Subscription {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &Subscription{Subscription: watch.New(module, &t.mu, source{t}), table: t, using: map[string]bool{},
		refused: map[string]string{}}
	t.subscriptions = append(t.subscriptions, s)
	return s
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.table.subscriptions = slices.DeleteFunc(s.table.subscriptions, func(o *Subscription) bool { return o == s })
	source{s.table}.Changed(source{s.table}.All()...)
}

// Next returns the next update, and false if there is nothing to send.
func (s *Subscription) Next() (Update, bool) {
	u, more := s.Subscription.Next()
	return Update{Update: u}, more
}

// Ack records the result of the last update.
func (s *Subscription) Ack(u Update, err error) {
	s.table.mu.Lock()
	if err == nil && u.Reset {
		clear(s.using)
		clear(s.refused)
	}
	if err == nil {
		for _, name := range u.response.Using {
			s.using[name] = true
		}
		maps.Copy(s.refused, u.response.Refused)
	}
	s.table.mu.Unlock()
	s.Subscription.Ack(u.Update, err)
}

// Err returns why the control plane does not run what it should, or nil.
func (s *Subscription) Err() error {
	if err := s.Subscription.Err(); err != nil {
		return err
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.refused)) {
		return fmt.Errorf("model %s: %s", name, s.refused[name])
	}
	return nil
}
