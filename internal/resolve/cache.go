// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// cache keeps what resolvers found in a file, written a moment after a change. To lose it is no harm beyond a question.
type cache struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	found map[string]map[string]Record // by source and name
	dirty chan struct{}                // has room for one
}

const cacheEvery = time.Second

func newCache(path string, log *slog.Logger) cache {
	return cache{path: path, log: log, dirty: make(chan struct{}, 1)}
}

func (c *cache) read() map[string]map[string]Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = map[string]map[string]Record{}
	data, err := os.ReadFile(c.path)
	if err == nil {
		err = json.Unmarshal(data, &c.found)
	}
	if err != nil && c.path != "" && !errors.Is(err, fs.ErrNotExist) {
		c.log.Warn("cached answers of resolvers are discarded and resolved again", "error", err)
		c.found = map[string]map[string]Record{}
	}
	return c.found
}

func (c *cache) put(source string, s Record) {
	c.change(func() { submap(c.found, source)[s.Name] = s })
}

func (c *cache) remove(source, name string) { c.change(func() { delete(c.found[source], name) }) }

func (c *cache) change(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		c.found = map[string]map[string]Record{}
	}
	do()
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// run writes changes, and those of the last moment when ctx ends.
func (c *cache) run(ctx context.Context) {
	for {
		select {
		case <-c.dirty:
		case <-ctx.Done():
			if len(c.dirty) > 0 {
				c.write()
			}
			return
		}
		select {
		case <-time.After(cacheEvery):
		case <-ctx.Done():
		}
		c.write()
	}
}

func (c *cache) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" {
		return
	}
	maps.DeleteFunc(c.found, func(_ string, all map[string]Record) bool { return len(all) == 0 })
	data, err := json.Marshal(c.found)
	if err == nil {
		err = atomicfile.Write(c.path, data, 0o600)
	}
	if err != nil {
		c.log.Warn("cannot store the answers of resolvers", "error", err)
	}
}
