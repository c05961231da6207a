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

// cache keeps what resolvers found in a file: all of it, and then a line for each change. A change is in the file
// before control planes receive it, so that an agent that is killed at any moment continues with what they have: if
// it knew less, they would end connections. The file need not survive the machine: changes are not synced, and it is in
// a tmpfs, so that writing all of it again waits for no disk.
type cache struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	found   map[string]map[string]Record // by source and name
	journal *os.File                     // nil: the whole file is to be written
	size    int                          // bytes of changes in it
	failed  bool                         // to write, which was logged
}

// change is one of a record; without one of it, Remove is.
type change struct {
	Source string  `json:"source"`
	Put    *Record `json:"put,omitempty"`
	Remove string  `json:"remove,omitempty"`
}

// maxJournal is how many bytes of changes make the whole file be written again.
const maxJournal = 1 << 20

func newCache(path string, log *slog.Logger) cache {
	return cache{path: path, log: log, found: map[string]map[string]Record{}}
}

// read returns what the file has. An agent that was killed while it wrote a change has not passed it on.
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

// decode reads the whole map and then the changes behind it. A last line that is cut off, as after a loss of power, is
// an error behind changes that were applied.
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

// note stores a change. A file that cannot be written is logged once, until it can be written again: answers still
// count while the agent runs.
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

// writeAll replaces the file by what is known now, and appends behind it from then on.
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
