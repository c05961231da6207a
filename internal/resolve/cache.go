// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// cache stores the results of resolvers in a file: a complete snapshot, followed by one line per change. A change is in
// the file before control planes receive it, so that an agent that is killed at any moment continues with the state
// that they have: if it had less, they would end connections. The file need not survive a crash of the machine: changes
// are not synced, and it is in a tmpfs, so that writing a snapshot waits for no disk.
type cache struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	found   map[string]map[string]Record // by source and name
	journal *os.File                     // nil: a snapshot has to be written
	size    int                          // bytes of changes in it
	failed  bool                         // the last write failed, which was logged
}

// change is a changed record; without one, Remove is set.
type change struct {
	Source string  `json:"source"`
	Put    *Record `json:"put,omitempty"`
	Remove string  `json:"remove,omitempty"`
}

// maxJournal is the number of bytes of changes after which a new snapshot is written.
const maxJournal = 1 << 20

func newCache(path string, log *slog.Logger) cache {
	return cache{path: path, log: log, found: map[string]map[string]Record{}}
}

// read returns the contents of the file. A change that a killed agent was writing has not been sent to control planes.
func (c *cache) read() map[string]map[string]Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.Open(c.path)
	if err == nil {
		defer f.Close()
		err = c.decode(json.NewDecoder(f))
	}
	if err != nil && c.path != "" && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, io.ErrUnexpectedEOF) {
		c.log.Warn("some cached answers of resolvers are discarded and resolved again", "error", err)
	}
	return c.found
}

// decode reads the snapshot and then the changes after it. A truncated last line, for example after a power failure, is
// an error after the changes before it have been applied.
func (c *cache) decode(from *json.Decoder) error {
	if err := from.Decode(&c.found); err != nil {
		c.found = map[string]map[string]Record{}
		return err
	}
	if c.found == nil { // the file has null
		c.found = map[string]map[string]Record{}
	}
	for {
		var one change
		if err := from.Decode(&one); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		c.apply(one)
	}
}

func (c *cache) apply(one change) {
	if one.Put != nil {
		submap(c.found, one.Source)[one.Put.Name] = *one.Put
	} else {
		drop(c.found, one.Source, one.Remove)
	}
}

func (c *cache) put(source string, s Record) { c.note(change{Source: source, Put: &s}) }

func (c *cache) remove(source, name string) { c.note(change{Source: source, Remove: name}) }

// note stores a change. If the file cannot be written, this is logged once, until it can be written again: results stay
// valid while the agent runs.
func (c *cache) note(one change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apply(one)
	if c.path == "" {
		return
	}
	err := c.write(one)
	if err != nil && !c.failed {
		c.log.Warn("cannot store the answers of resolvers", "error", err)
	}
	c.failed = err != nil
}

// write appends a line, or writes the file again when there are more than maxJournal bytes of changes.
func (c *cache) write(one change) error {
	if c.journal == nil || c.size > maxJournal {
		return c.writeAll()
	}
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if _, err := c.journal.Write(append(line, '\n')); err != nil {
		return errors.Join(err, c.closeJournal())
	}
	c.size += len(line)
	return nil
}

// writeAll replaces the file by a snapshot, to which further changes are appended.
func (c *cache) writeAll() error {
	data, err := json.Marshal(c.found)
	if err != nil {
		return err
	}
	if err := errors.Join(c.closeJournal(), atomicfile.Write(c.path, append(data, '\n'), 0o600)); err != nil {
		return err
	}
	c.journal, err = os.OpenFile(c.path, os.O_APPEND|os.O_WRONLY, 0)
	c.size = 0
	return err
}

func (c *cache) closeJournal() error {
	if c.journal == nil {
		return nil
	}
	err := c.journal.Close()
	c.journal = nil
	return err
}
