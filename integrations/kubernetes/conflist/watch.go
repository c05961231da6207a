// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// changes are the events after which a file is complete or deleted. They exclude creation, which precedes the content.
const changes = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE

// lockRetry is how often a second installer tries: the first one, of an earlier version, is about to end.
const lockRetry = time.Second

// Watch installs, and repeats the installation whenever a file in the directories changes, until the context ends. It
// does not remove Kerb's configuration, which only Uninstall does. It passes errors of installations to report, and
// waits while another process runs Watch.
func (n Network) Watch(ctx context.Context, report func(error)) error {
	lock, err := n.await(ctx, report)
	if lock == nil {
		return err
	}
	defer lock.Close()
	events, err := n.listen()
	if err != nil {
		return err
	}
	var once sync.Once
	closeEvents := func() { once.Do(func() { events.Close() }) }
	defer closeEvents()
	defer context.AfterFunc(ctx, closeEvents)()
	buffer := make([]byte, 64<<10)
	for {
		if err := n.install(); err != nil {
			report(err)
		}
		// What the events say does not matter, nor that some are lost when there are too many: Install reads all files.
		if _, err := events.Read(buffer); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch %s: %w", n.Dir, err)
		}
	}
}

// await returns the lock, or nil when the context ends.
func (n Network) await(ctx context.Context, report func(error)) (*os.File, error) {
	reported := false
	for ctx.Err() == nil {
		lock, err := n.lock()
		if !errors.Is(err, ErrBusy) {
			return lock, err
		}
		if !reported {
			report(fmt.Errorf("%w: this one waits", err))
			reported = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockRetry):
		}
	}
	return nil, nil
}

// listen starts to watch the directories, which it creates: runtimes wait for configurations in them.
func (n Network) listen() (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch configurations of networks: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	for _, dir := range []string{n.Dir, n.Bin} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, errors.Join(err, events.Close())
		}
		if _, err := unix.InotifyAddWatch(fd, dir, changes); err != nil {
			return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), events.Close())
		}
	}
	return events, nil
}
