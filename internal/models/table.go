// SPDX-License-Identifier: Apache-2.0

// Package models keeps the models of the node: it checks their documents, tells control planes of them, and knows what
// became of each.
package models

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/feed"
	"github.com/kerb-edge/kerb/sdk"
)

// Reasons of a model's condition Ready.
const (
	ReasonNotUsed = "NotUsed" // no module has to be notified
	ReasonInUse   = "InUse"
	ReasonPending = "Pending" // modules are being told
	ReasonRefused = "Refused" // a module's config names it, and the module cannot use it
)

// Table is the models of the node.
type Table struct {
	log *slog.Logger

	mu        sync.Mutex
	models    map[string]*entry
	followers []*Follower
	changed   func(name string) // may be nil
}

type entry struct {
	model   v1.Model
	summary v1.ModelSummary
}

// NewTable makes a table without models.
func NewTable(log *slog.Logger) *Table { return &Table{log: log, models: map[string]*entry{}} }

// Apply puts and removes models, which were checked.
func (t *Table) Apply(put []v1.Model, remove []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range remove {
		delete(t.models, name)
		t.tell(name)
	}
	for _, m := range put {
		summary, err := Summarize(m.Spec)
		if err != nil { // one that an older build took
			t.log.Error("model", "name", m.Metadata.Name, "error", err)
		}
		t.models[m.Metadata.Name] = &entry{model: m, summary: summary}
		t.tell(m.Metadata.Name)
	}
}

// OnChange has f called with the name of each model whose conditions may have changed, under the table's lock. It
// must be called before anything else is.
func (t *Table) OnChange(f func(name string)) { t.changed = f }

func (t *Table) tell(name string) {
	source{t}.Changed(name)
	for _, f := range t.followers {
		delete(f.using, name)
		delete(f.refused, name)
		f.Tell(name)
	}
}

// Names lists the models in order.
func (t *Table) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return source{t}.All()
}

// Status is what has become of a model; nil if there is none of that name.
func (t *Table) Status(name string) *v1.ModelStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.models[name]
	if e == nil {
		return nil
	}
	status := &v1.ModelStatus{Summary: e.summary}
	ready := v1.Condition{Type: "Ready", Status: "True", Reason: ReasonNotUsed, Message: "no module uses it"}
	for _, f := range t.followers {
		switch lacks := f.Lacks(name); {
		case f.refused[name] != "":
			ready.Status, ready.Reason, ready.Message = "False", ReasonRefused, fmt.Sprintf("module %s: %s", f.Module, f.refused[name])
		case lacks != "" && ready.Status == "True":
			ready.Status, ready.Reason, ready.Message = "False", ReasonPending, fmt.Sprintf("module %s: %s", f.Module, lacks)
		case lacks == "" && f.using[name] && !slices.Contains(status.Modules, f.Module):
			status.Modules = append(status.Modules, f.Module)
		}
	}
	slices.Sort(status.Modules)
	if ready.Status == "True" && len(status.Modules) > 0 {
		ready.Reason, ready.Message = ReasonInUse, ""
	}
	status.Conditions = []v1.Condition{ready}
	return status
}

// source is what followers of a table are told. Documents are encoded when they are sent, to keep them once in memory.
type source struct{ *Table }

func (t source) All() []string { return slices.Sorted(maps.Keys(t.models)) }

func (t source) Encoded(name string) json.RawMessage {
	e := t.models[name]
	if e == nil {
		return nil
	}
	data, err := json.Marshal(sdk.Model{Name: name, Generation: e.model.Metadata.Generation, Document: json.RawMessage(e.model.Spec.Document)})
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

// Follower is what one control plane has been told, and what it says of it.
type Follower struct {
	*feed.Follower
	table   *Table
	using   map[string]bool // guarded by the table's lock
	refused map[string]string
}

// Update is an sdk.ModelUpdate, with the answer to it.
type Update struct {
	feed.Update
	answer sdk.ModelAnswer
}

// Answer is where the control plane's answer goes.
func (u *Update) Answer() any { return &u.answer }

// Follow makes a follower for the control plane of a module, which begins with all there is.
func (t *Table) Follow(module string) *Follower {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &Follower{Follower: feed.New(module, &t.mu, source{t}), table: t, using: map[string]bool{}, refused: map[string]string{}}
	t.followers = append(t.followers, f)
	return f
}

// Close ends it.
func (f *Follower) Close() {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	f.table.followers = slices.DeleteFunc(f.table.followers, func(o *Follower) bool { return o == f })
	source{f.table}.Changed(source{f.table}.All()...)
}

// Next is the next update, false if there is nothing to tell. Taken must follow.
func (f *Follower) Next() (Update, bool) {
	u, more := f.Follower.Next()
	return Update{Update: u}, more
}

// Taken reports what became of the last update.
func (f *Follower) Taken(u Update, err error) {
	f.table.mu.Lock()
	if err == nil && u.Reset {
		clear(f.using)
		clear(f.refused)
	}
	if err == nil {
		for _, name := range u.answer.Using {
			f.using[name] = true
		}
		maps.Copy(f.refused, u.answer.Refused)
	}
	f.table.mu.Unlock()
	f.Follower.Taken(u.Update, err)
}

// Err is why the control plane does not run what it should, nil if it does.
func (f *Follower) Err() error {
	if err := f.Follower.Err(); err != nil {
		return err
	}
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.refused)) {
		return fmt.Errorf("model %s: %s", name, f.refused[name])
	}
	return nil
}
