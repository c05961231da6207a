// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lockfile"
)

// users allocates user ids that are not in use elsewhere on the machine, from the range that systemd reserves for such
// purposes. Agents on one machine share a file, in which a lock on the byte at an id's offset means that the id is in
// use. The kernel releases the lock when the agent ends, together with its control planes.
type users struct {
	locks *os.File // nil: this agent is assumed to be the only one

	mu    sync.Mutex
	taken map[int]*user
}

// user is the user of a module's control planes: during an upgrade there are two, which share the module's state
// directory.
type user struct {
	module    string
	processes int
}

const firstUser, lastUser = 61184, 65519 // systemd.io/UIDS-GIDS: dynamic service users

func newUsers(path string) (*users, error) {
	locks, err := lockfile.Share(path)
	return &users{locks: locks, taken: map[int]*user{}}, err
}

func (u *users) close() {
	if u.locks != nil {
		u.locks.Close()
	}
}

// take prefers the id that owns the module's state directory.
func (u *users) take(module string, preferred int) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, who := range u.taken {
		if who.module == module {
			who.processes++
			return id, nil
		}
	}
	if preferred >= firstUser && preferred <= lastUser && u.claim(preferred, module) {
		return preferred, nil
	}
	for id := firstUser; id <= lastUser; id++ {
		if u.claim(id, module) {
			return id, nil
		}
	}
	return 0, errors.New("no user id is left for control planes")
}

func (u *users) claim(id int, module string) bool {
	if u.taken[id] != nil || !u.lock(id, unix.F_WRLCK) {
		return false
	}
	u.taken[id] = &user{module, 1}
	return true
}

// lock sets or removes the lock on an id. Open file description locks (Linux 3.15) are not released when the file is
// closed elsewhere in this process.
func (u *users) lock(id int, kind int16) bool {
	if u.locks == nil {
		return true
	}
	err := unix.FcntlFlock(u.locks.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: int64(id), Len: 1})
	return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES)
}

func (u *users) release(id int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.taken[id].processes--; u.taken[id].processes == 0 {
		u.lock(id, unix.F_UNLCK)
		delete(u.taken, id)
	}
}
