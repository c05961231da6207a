// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// A module on sockets reports messages itself (kerb/messages.h): sockets keep the sk_msg program with which they were
// added, so that a trace cannot replace it while it runs. Instead the trace gives its filters and rings to the module's
// maps.

// Maps of kerb/messages.h. A package without them has no messages in traces.
const (
	messageSessionsMap = "kerb_message_sessions"
	messageFilterMap   = "kerb_message_filter"
	messageEventsMap   = "kerb_message_events"
)

// traceMessage is KERB_TRACE_MESSAGE.
const traceMessage = 0xfd

// Message reports whether the event is a message on a socket, with the verdict of the only module in its chain. Key is
// the cookie of the socket's network namespace.
func (e TraceEvent) Message() bool { return e.Position == traceMessage }

// messageSessions is struct kerb_message_sessions.
type messageSessions struct{ Sessions, Chain uint32 }

// tracedMessages is a module on sockets that reports to sessions.
type tracedMessages struct {
	id                       uint32 // of the map of sessions
	sessions, filters, rings *ebpf.Map
	wanted                   messageSessions
}

func (m *tracedMessages) close() {
	for _, one := range []*ebpf.Map{m.sessions, m.filters, m.rings} {
		if one != nil {
			one.Close()
		}
	}
}

// watchMessages makes a pinned module on sockets report to the session. With the pins, ForgetTraces finds its maps
// after an agent was killed.
func (t *Trace) watchMessages(d *Dataplane, spec chain.Spec, modules map[string]Module) error {
	members, err := d.openMembers(spec, modules)
	defer closeMembers(members)
	if err != nil {
		return err
	}
	m, err := t.messagesOf(members[0].maps, spec)
	if err == nil && m != nil {
		err = errors.Join(m.pin(d.layout.traces()), t.reportMessages(m))
	}
	if err != nil {
		return fmt.Errorf("trace messages of module %s: %w", spec.Members[0].Name, err)
	}
	return nil
}

func (m *tracedMessages) pin(dir string) error {
	return errors.Join(pinOnce(m.sessions, filepath.Join(dir, fmt.Sprint(messageSessionsMap, "-", m.id))),
		pinOnce(m.rings, filepath.Join(dir, fmt.Sprint(messageEventsMap, "-", m.id))))
}

// reportMessages gives a module the session's filter and ring.
func (t *Trace) reportMessages(m *tracedMessages) error {
	f := t.filter.raw()
	f.Active = 1
	m.wanted.Sessions |= 1 << t.session
	for _, err := range []error{m.rings.Put(uint32(t.session), t.ring), m.filters.Put(uint32(t.session), f),
		m.sessions.Put(uint32(0), m.wanted)} {
		if err != nil {
			return err
		}
	}
	return nil
}

// messagesOf caches the maps of a module for all sessions; nil if it reports nothing. Map sets of a module may have the
// same maps.
func (t *tracer) messagesOf(maps map[string]*ebpf.Map, spec chain.Spec) (*tracedMessages, error) {
	if maps[messageSessionsMap] == nil || maps[messageFilterMap] == nil || maps[messageEventsMap] == nil {
		return nil, nil
	}
	id, err := objectID(maps[messageSessionsMap].FD())
	if err != nil {
		return nil, err
	}
	if m := t.messages[id]; m != nil {
		return m, nil
	}
	m := &tracedMessages{id: id, wanted: messageSessions{Chain: uint32(t.number(spec) + 1)}}
	for name, to := range map[string]**ebpf.Map{messageSessionsMap: &m.sessions, messageFilterMap: &m.filters,
		messageEventsMap: &m.rings} {
		if *to, err = maps[name].Clone(); err != nil {
			m.close()
			return nil, err
		}
	}
	t.messages[id] = m
	return m, nil
}

// ignoreMessages ends the reports of all modules to the session. If that fails, they continue until the node changes.
func (t *Trace) ignoreMessages() {
	for _, m := range t.messages {
		m.wanted.Sessions &^= 1 << t.session
		_ = m.sessions.Put(uint32(0), m.wanted)
		_ = m.filters.Put(uint32(t.session), traceFilter{})
		_ = m.rings.Delete(uint32(t.session))
	}
}

// lostMessages returns the number of messages for which there was no room.
func (t *Trace) lostMessages() (n uint64) {
	for _, m := range t.messages {
		var f traceFilter
		if err := m.filters.Lookup(uint32(t.session), &f); err == nil {
			n += f.Lost
		}
	}
	return n
}

// forgetMessages ends the reports to sessions of a killed agent, and frees their rings.
func (d *Dataplane) forgetMessages() error {
	entries, err := os.ReadDir(d.layout.traces())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), "-")
		if name != messageSessionsMap && name != messageEventsMap {
			continue
		}
		m, openErr := pinnedMap(filepath.Join(d.layout.traces(), e.Name()))
		if openErr != nil {
			err = errors.Join(err, openErr)
			continue
		}
		if name == messageSessionsMap {
			err = errors.Join(err, m.Put(uint32(0), messageSessions{}))
		}
		for i := uint32(0); name == messageEventsMap && i < TraceSessions; i++ {
			if e := m.Delete(i); !errors.Is(e, ebpf.ErrKeyNotExist) {
				err = errors.Join(err, e)
			}
		}
		m.Close()
	}
	return err
}
