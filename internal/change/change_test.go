// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/sets"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/internal/store"
	"github.com/kerb-edge/kerb/internal/view"
)

// virtual counts how often all virtual services are looked through.
type virtual struct{ listed int }

func (v *virtual) Names() []string                          { v.listed++; return nil }
func (*virtual) View(string) (s v1.VirtualService, ok bool) { return s, false }

// newPipeline has a store, and nothing in the kernel.
func newPipeline(t *testing.T) (*Pipeline, *virtual) {
	t.Helper()
	dir, log, seen := t.TempDir(), slog.New(slog.DiscardHandler), &virtual{}
	s, err := store.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	now := &status.Node{Desired: resource.State{}, Sources: status.Sources{Virtual: seen}}
	p := New(&view.Views{Log: log, Lock: new(sync.Mutex), Now: now, Store: s, Models: models.NewTable(log)})
	p.Virtual = resolve.NewTable(log, filepath.Join(dir, "resolved.json"))
	p.Sets = sets.New(log, func(bool) (sets.Kernel, error) { return nil, nil }, func() bool { return false })
	return p, seen
}

// Deletions are part of the end of each pod: they do not look for what is wrong with replies on the whole node.
func TestDeletionSearchesNoReplies(t *testing.T) {
	p, seen := newPipeline(t)
	shop := v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
		Metadata: v1.ObjectMeta{Name: "shop"}}
	shop.Spec.Addresses = []v1.VirtualAddress{{Address: "10.9.0.1"}}
	put := resource.Request{Resources: resource.Objects(shop)}
	remove := resource.Request{Remove: resource.Refs(put.Resources)}
	for _, c := range []struct {
		request resource.Request
		listed  int
	}{{put, 1}, {remove, 1}, {resource.Request{Prune: true}, 2}} {
		if _, err := p.apply(c.request); err != nil || seen.listed != c.listed {
			t.Errorf("%+v: looked through %d times, want %d; %v", c.request, seen.listed, c.listed, err)
		}
	}
}

// What a store that cannot be written says is an error of the store.
func TestCommitError(t *testing.T) {
	p, _ := newPipeline(t)
	if err := p.Store.Close(); err != nil {
		t.Fatal(err)
	}
	c := resource.Changes{Remove: []resource.Ref{{Kind: v1.KindSet, Name: "gone"}}}
	var unstored *commitError
	if err := p.commit(resource.State{}, c, false); !errors.As(err, &unstored) {
		t.Errorf("%T %v", err, err)
	}
}
