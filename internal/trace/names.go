// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"sync"
	"time"
)

// NoteNamer is a control plane that may have names for the values of notes: *control.Supervisor.
type NoteNamer interface {
	NoteName(ctx context.Context, note string, value uint64) (string, error)
}

const (
	nameLasts = time.Second // a number may get another name when a rule is replaced
	mostNames = 4096
	// A module that takes longer for an answer is not queried for slowPause times as long: packets of a trace wait for
	// answers, and the longer they do, the more are lost.
	slowName, slowPause = 20 * time.Millisecond, 20
)

// noteNames caches names by module, note and value, for a moment.
type noteNames[P NoteNamer] struct {
	planes map[string]P

	mu     sync.Mutex
	known  map[noteKey]namedNote
	silent map[string]time.Time // until when a module is not queried: it has no names, is slow, or does not answer
}

type noteKey struct {
	module, note string
	value        uint64
}

type namedNote struct {
	name  string
	until time.Time
}

// NoteValues returns a function that queries control planes for the names of notes' values. It caches answers for a
// moment.
func NoteValues[P NoteNamer](planes map[string]P) func(module, note string, value uint64) string {
	n := &noteNames[P]{planes: planes, known: map[noteKey]namedNote{}, silent: map[string]time.Time{}}
	return n.name
}

func (n *noteNames[P]) name(module, note string, value uint64) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	plane, exists := n.planes[module]
	key, now := noteKey{module, note, value}, time.Now()
	known, asked := n.known[key]
	if !exists || asked && now.Before(known.until) || now.Before(n.silent[module]) {
		return known.name
	}
	name, err := plane.NoteName(context.Background(), note, value)
	if took := time.Since(now); err != nil || took > slowName {
		n.silent[module] = time.Now().Add(max(nameLasts, slowPause*took))
	}
	if err != nil {
		return known.name
	}
	if len(n.known) >= mostNames {
		clear(n.known)
	}
	n.known[key] = namedNote{name, now.Add(nameLasts)}
	return name
}
