// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/integration/link"
)

// snapshot returns everything of a session that a message may change.
func (s *session) snapshot() (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		f := s.services[name]
		lines = append(lines, fmt.Sprintf("%s %t %+v %+v %t %v %t", name, f.used, f.found, f.query, f.stale, f.leaveAt,
			f.leaving))
		for _, n := range slices.Sorted(maps.Keys(f.instances)) {
			lines = append(lines, fmt.Sprintf("%s %d %+v", name, n, *f.instances[n]))
		}
	}
	for addr, l := range s.lookups {
		lines = append(lines, fmt.Sprintf("lookup %v %+v", addr, *l))
	}
	return append(lines, fmt.Sprint(s.assigned, s.subnet, s.outgoing, s.lastMessage))
}

// hostile is a message that is rejected, and the field that the log names. The topic is the part after nodes/ID/net/.
type hostile struct{ topic, payload, field string }

const hostileHost = `"namespace_ip":"10.18.1.9","namespace_ip_v6":"fc00::109","host_ip":"192.168.77.66","host_port":50103,`

// hostileEntries are lists of instances, of which the last is invalid: the ones before it must not be applied.
func hostileEntries() []hostile {
	good := fmt.Sprintf(`{"instance_number":0,%s"service_ip":[{"IpType":"RR","Address":"10.30.0.9"}]}`, hostileHost)
	virtual := func(more string) string { return `{"instance_number":7,"service_ip":[` + more + `]}` }
	var all []hostile
	for field, entries := range map[string][]string{
		"": {`7`, `"x"`, `[]`, `true`},
		".instance_number": {`{}`, `null`, `{"instance_number":null}`, `{"instance_number":-1}`, `{"instance_number":0}`,
			`{"instance_number":"7"}`, `{"instance_number":1.5}`, `{"instance_number":1e99}`, `{"instance_number":[]}`},
		".worker_id": {`{"instance_number":7,"worker_id":7}`, `{"instance_number":7,"worker_id":{}}`},
		".namespace_ip": {`{"instance_number":7,"namespace_ip":7}`, `{"instance_number":7,"namespace_ip":"x"}`,
			`{"instance_number":7,"namespace_ip":"fc00::2"}`, `{"instance_number":7,"namespace_ip":"10.18.0.300"}`,
			`{"instance_number":7,"namespace_ip":"10.18.0.0/26"}`, `{"instance_number":7,"namespace_ip":"127.0.0.1"}`,
			`{"instance_number":7,"namespace_ip":"0.0.0.0"}`, `{"instance_number":7,"namespace_ip":"224.0.0.1"}`,
			`{"instance_number":7,"namespace_ip":"255.255.255.255"}`, `{"instance_number":7,"namespace_ip":"10.30.0.9"}`},
		".namespace_ip_v6": {`{"instance_number":7,"namespace_ip_v6":[]}`, `{"instance_number":7,"namespace_ip_v6":"10.18.0.2"}`,
			`{"instance_number":7,"namespace_ip_v6":"::1"}`, `{"instance_number":7,"namespace_ip_v6":"fe80::1%eth0"}`,
			`{"instance_number":7,"namespace_ip_v6":"ff02::1"}`, `{"instance_number":7,"namespace_ip_v6":"::ffff:10.18.0.2"}`,
			`{"instance_number":7,"namespace_ip_v6":"fdff:2000::9"}`},
		".host_ip": {`{"instance_number":7,"host_ip":"here"}`, `{"instance_number":7,"host_ip":7}`},
		".host_port": {`{"instance_number":7,"host_port":[]}`, `{"instance_number":7,"host_port":70000}`,
			`{"instance_number":7,"host_port":-1}`, `{"instance_number":7,"host_port":1.5}`,
			`{"instance_number":7,"host_port":0}`, `{"instance_number":7,"host_port":"0"}`,
			`{"instance_number":7,"host_port":65536}`, `{"instance_number":7,"host_port":"65536"}`,
			`{"instance_number":7,"host_port":"-1"}`, `{"instance_number":7,"host_port":1e99}`,
			`{"instance_number":7,"host_port":"ssh"}`, `{"instance_number":7,"host_port":true}`},
		".service_ip": {`{"instance_number":7,"service_ip":{}}`, `{"instance_number":7,"service_ip":"10.30.0.9"}`,
			virtual(strings.Repeat(`{},`, maxAddresses) + `{}`)},
		".service_ip[0]":        {virtual(`7`), virtual(`"10.30.0.9"`)},
		".service_ip[0].IpType": {virtual(`{"IpType":7}`)},
		".service_ip[0].Address": {virtual(`{"Address":7}`), virtual(`{"Address":"x"}`), virtual(`{"Address":"8.8.8.8"}`),
			virtual(`{"Address":"127.0.0.1"}`), virtual(`{"Address":"10.18.0.1"}`)},
		".service_ip[0].Address_v6": {virtual(`{"Address_v6":{}}`), virtual(`{"Address_v6":"2001:db8::1"}`),
			virtual(`{"Address_v6":"fc00::2"}`)},
		".service_ip[1].Address": {virtual(`{"Address":"10.30.0.9"},{"Address":"192.168.77.11"}`)},
	} {
		for _, e := range entries {
			all = append(all, hostile{payload: "[" + good + "," + e + "]", field: "instance_list[1]" + field})
		}
	}
	return all
}

// hostileMessages are messages on all topics that a worker subscribes to, and on others.
func hostileMessages() []hostile {
	all := []hostile{
		{topicSubnetResult, `{"addressv6":"fc00::"}`, "address"},
		{topicSubnetResult, `{"address":null,"addressv6":null}`, "address"},
		{topicSubnetResult, `{"address":7}`, "address"},
		{topicSubnetResult, `{"address":["10.18.0.0"]}`, "address"},
		{topicSubnetResult, `{"address":"10.18.0.1","addressv6":"fc00::"}`, "address"},
		{topicSubnetResult, `{"address":"10.18.0.0/26","addressv6":"fc00::"}`, "address"},
		{topicSubnetResult, `{"address":"8.8.8.0","addressv6":"fc00::"}`, "address"},
		{topicSubnetResult, `{"address":"10.30.1.0","addressv6":"fc00::"}`, "address"},
		{topicSubnetResult, `{"address":"fc00::","addressv6":"fc00::"}`, "address"},
		{topicSubnetResult, `{"address":"10.18.0.0"}`, "addressv6"},
		{topicSubnetResult, `{"address":"10.18.0.0","addressv6":"10.18.0.0"}`, "addressv6"},
		{topicSubnetResult, `{"address":"10.18.0.0","addressv6":"2001:db8::"}`, "addressv6"},
		{topicSubnetResult, `{"address":"10.18.0.0","addressv6":"fdff:2000::"}`, "addressv6"},
		{topicSubnetResult, `{"address":"10.18.0.0","addressv6":"fc00::%eth0"}`, "addressv6"},
		{topicTableResult, `{"app_name":"a","instance_list":[]}`, "query_key"},
		{topicTableResult, `{"query_key":7}`, "query_key"},
		{topicTableResult, `{"app_name":{},"query_key":"a"}`, "app_name"},
		{topicTableResult, `{"app_name":"+/#","query_key":"+/#","instance_list":[]}`, "app_name"},
		{topicTableResult, `{"app_name":"other","query_key":"` + otherApp + `","instance_list":[]}`, "app_name"},
		{"/jobs/" + otherApp + "/updates_available", `{}`, "type"},
		{"/jobs/" + otherApp + "/updates_available", `{"type":7}`, "type"},
		{"/jobs/" + otherApp + "/updates_available", `{"type":"deployment"}`, "type"},
		{"/nodes/" + otherWorker + "/net/" + topicSubnetResult, `{"address":"10.18.0.0","addressv6":"fc00::"}`, "topic"},
		{"/nodes/" + otherWorker + "/net/" + topicTableResult, `{}`, "topic"},
		{"/nodes/" + otherWorker + "/control/deploy", `{"job_name":"a.b.c.d","instance_number":0}`, "topic"},
		{"/nodes/" + testWorker + "/control/deploy", `{}`, "job_name"},
		{"/nodes/" + testWorker + "/control/deploy", `{"job_name":"a.b.c.d","instance_number":{}}`, "instance_number"},
		{"/nodes/" + testWorker + "/control/deploy",
			`{"job_name":"` + strings.Repeat("é", 100000) + `","instance_number":0}`, "job_name"},
		{"/nodes/x" + updateSuffix, `{"type":"DEPLOYMENT"}`, "topic"},
		{"/", ``, "topic"},
	}
	for _, topic := range []string{topicSubnetResult, topicTableResult, "/jobs/" + otherApp + "/updates_available",
		"/nodes/" + testWorker + "/control/deploy"} {
		for _, text := range []string{"", "x", "{", "[]", "7", `"x"`, "\xff", strings.Repeat("[", 100000),
			`{"x":"` + strings.Repeat("a", maxMessage) + `"}`} {
			all = append(all, hostile{topic, text, "payload"})
		}
	}
	for _, key := range []string{otherApp, "10.30.0.77"} { // queried by name, and by address
		table := func(list, field string) hostile {
			return hostile{topicTableResult, fmt.Sprintf(`{"app_name":%q,"query_key":%q,"instance_list":%s}`, otherApp, key,
				list), field}
		}
		all = append(all, table("null", "instance_list"), table("{}", "instance_list"), table("7", "instance_list"),
			table("[{}"+strings.Repeat(",{}", maxInstances)+"]", "instance_list"),
			table(longList(maxInstances+1), "instance_list"))
		for _, h := range hostileEntries() {
			all = append(all, table(h.payload, h.field))
		}
	}
	return all
}

func longList(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"instance_number":%d}`, i)
	}
	return "[" + b.String()[1:] + "]"
}

// An invalid message is rejected as a whole: the log names topic and field, and nothing changes.
func TestHostileMessages(t *testing.T) {
	s, told := newQuietSession()
	log := &safeBuffer{}
	s.log = slog.New(slog.NewTextHandler(log, nil))
	s.onJob = func(j job) { t.Errorf("a job: %+v", j) }
	s.onSubnet = func(netip.Prefix, netip.Prefix) { t.Error("a subnet") }
	s.add(hostedInstance{app: testApp, number: 0, four: netip.MustParseAddr("10.18.0.2")})
	s.request(link.Request{Lookup: []netip.Addr{netip.MustParseAddr("10.30.0.2")}})
	s.answer(t, otherApp, "10.30.0.2", "["+entryOf(0, hostileHost)+"]")
	s.request(link.Request{Lookup: []netip.Addr{netip.MustParseAddr("10.30.0.77")}})
	before, knew := s.snapshot(), len(*told)
	for _, h := range hostileMessages() {
		topic, other := strings.CutPrefix(h.topic, "/")
		if !other {
			topic = s.topic(h.topic)
		}
		mark := len(log.String())
		s.receive(topic, []byte(h.payload))
		said, short := log.String()[mark:], h.payload[:min(len(h.payload), 300)]
		name := topic
		if name == "" {
			name = `""`
		}
		if want := fmt.Sprintf("topic=%s field=%s reason=", name, h.field); !strings.Contains(said, want) ||
			strings.Count(said, "\n") != 1 || len(said) > 1000 {
			t.Errorf("%s: %s: not %q but %.1000q", topic, short, want, said)
		}
		if diff := cmp.Diff(before, s.snapshot()); diff != "" || len(*told) != knew {
			t.Fatalf("%s: %s: the agent got %v; changed:\n%s", topic, short, (*told)[knew:], diff)
		}
	}
}

// Lists that are too large are rejected before they are decoded into memory.
func TestHugeListsAreNotDecoded(t *testing.T) {
	one := `{"app_name":"a","query_key":"a","instance_list":[`
	for _, text := range []string{one + strings.Repeat("{},", maxMessage/3-100) + "{}]}",
		one + `{"instance_number":0,"service_ip":[` + strings.Repeat("{},", maxMessage/3-100) + "{}]}]}"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decodeTable([]byte(text), nil)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; err == nil || used > 8*maxMessage {
			t.Errorf("%v, %d bytes of memory", err, used)
		}
	}
}
