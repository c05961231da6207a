// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/lab/oaktest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// TestNetManagerSendsWhatIsRecorded makes two doubles of NetManager do what the real ones did in recordings 01, 03, 05
// and 06: register, deploy, exchange packets for the first time, and lose interest a while later. Each sends the same
// messages in the same order.
func TestNetManagerSendsWhatIsRecorded(t *testing.T) {
	m := &model{bed: newBed(t, 0, 2), running: map[string]map[int]*instance{}}
	m.cluster.Twice(0)
	const server, client = "app.ns.server.test", "app.ns.client.test"
	for _, name := range []string{server, client} {
		m.running[name] = map[int]*instance{}
		m.cluster.Create(name)
	}
	m.place(server, 0, m.workers[0])
	m.place(client, 0, m.workers[1])
	wait.Until(t, "both have queried their own service", func() bool {
		return len(m.cluster.Interested(server)) == 1 && len(m.cluster.Interested(client)) == 1
	})
	if _, err := m.running[client][0].container.reach("tcp", m.cluster.Addresses(server)[0], "reach"); err != nil {
		t.Fatal(err)
	}
	want := map[string][]oaktest.Message{}
	for _, name := range []string{"01-register", "03-deploy", "05-query-service-ip", "06-interest-expires"} {
		m.recorded(name, want)
	}
	for _, w := range m.workers {
		var got []oaktest.Message
		wait.Until(t, w.name+" loses interest", func() bool {
			got = m.sent(w)
			return len(got) >= len(want[w.name])
		}, func() any { return got })
		byPayload(want[w.name])
		if diff := cmp.Diff(want[w.name], got); diff != "" {
			t.Errorf("%s: recorded (-), double (+):\n%s", w.name, diff)
		}
	}
}

// sent returns the messages that a worker has published, with the name and address that it has in the recordings. If
// the notice of its own deployment follows its subscription, it repeats the query of its own service, as the real one
// does: the repetition is removed.
func (m *model) sent(w *worker) (all []oaktest.Message) {
	for _, r := range m.cluster.Received() {
		if r.Worker != w.id {
			continue
		}
		r.Worker = w.name
		r.Payload = strings.Replace(r.Payload, w.host.Addr4().String(), "192.168.77.1"+w.name[1:], 1)
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	byPayload(all)
	return all
}

// byPayload sorts the final messages, which end interests: those in a name and in an address have separate timers that
// end within milliseconds of each other, in either order.
func byPayload(all []oaktest.Message) {
	slices.SortStableFunc(all, func(a, b oaktest.Message) int {
		if a.Topic != "interest/remove" || b.Topic != a.Topic {
			return 0
		}
		return strings.Compare(a.Payload, b.Payload)
	})
}

// recorded adds the messages of each worker in a recording, with payloads as Go encodes them.
func (m *model) recorded(name string, to map[string][]oaktest.Message) {
	m.Helper()
	data, err := os.ReadFile(filepath.Join("../../internal/lab/oaktest/testdata", name+".jsonl"))
	if err != nil {
		m.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var l struct {
			From, Publish string
			Payload       json.RawMessage
		}
		_ = json.Unmarshal(s.Bytes(), &l) // responses of a network manager have a string as body
		if _, topic, ok := strings.Cut(l.Publish, "/net/"); ok && strings.HasPrefix(l.From, "w") {
			to[l.From] = append(to[l.From], oaktest.Message{Worker: l.From, Topic: topic, Payload: string(l.Payload)})
		}
	}
}
