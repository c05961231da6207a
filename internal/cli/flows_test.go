// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

func TestFlowTable(t *testing.T) {
	var out strings.Builder
	flow := v1alpha1.Flow{Service: "web", Direction: "ingress", Protocol: "tcp", Source: "2001:db8::7", SourcePort: 40000,
		Destination: "10.0.0.2", DestinationPort: 80, DestinationService: "web", Packets: 12, Bytes: 3400, ReplyPackets: 10,
		ReplyBytes: 1234567, Verdict: "mixed", Dropped: 2, DropModule: "fw", DropReason: "policy", State: "established",
		ToResponderNanoseconds: 120_345, ToInitiatorNanoseconds: 23_456_789, Retransmits: 1, ReplyRetransmits: 2}
	sum := v1alpha1.Flow{Protocol: "udp", Destination: "192.0.2.53", DestinationPort: 53, SourceService: "db", Flows: 7,
		Verdict: "next"}
	flowTable(&out, []v1alpha1.FlowLine{{Flow: &flow}, {Flow: &sum}, {Missing: &v1alpha1.MissingFlows{Service: "web",
		Others: 3, OtherPackets: 9, UnrecordedPackets: 7}}})
	want := `[2001:db8::7]:40000 web(10.0.0.2:80) tcp 12 3.4kB 10 1.23MB 120.35µs+23.46ms 3 drop 2 (fw policy) established
db 192.0.2.53:53 udp 0 0B 0 0B - 0 next 7 flows
of web: 3 flows with 9 packets are too small to be kept one by one; 7 packets are of flows that there was no room for
`
	var lines []string
	for _, l := range strings.Split(out.String(), "\n")[1:] {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Columns of flows are named like the API's fields. RTT combines two fields.
func TestFlowColumnsAreFields(t *testing.T) {
	fields := map[string]bool{"rtt": true}
	for f := range reflect.TypeFor[v1alpha1.Flow]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[strings.ToLower(name)] = true
	}
	var out strings.Builder
	flowTable(&out, nil)
	for _, column := range strings.Fields(out.String()) {
		if !fields[strings.ToLower(strings.ReplaceAll(column, "-", ""))] {
			t.Errorf("no field of a flow is called %s", column)
		}
	}
}

// Columns of changes are named like the API's fields. Times on the command line have a unit.
func TestChangeColumnsAreFields(t *testing.T) {
	fields := map[string]bool{}
	for f := range reflect.TypeFor[v1alpha1.ChangeRecord]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[strings.ToLower(strings.TrimSuffix(name, "Nanoseconds"))] = true
	}
	var out strings.Builder
	printChanges(&out, []v1alpha1.ChangeRecord{{}})
	titles, _, _ := strings.Cut(out.String(), "\n")
	for _, column := range strings.Fields(titles) {
		if !fields[strings.ToLower(column)] {
			t.Errorf("no field of a change is called %s", column)
		}
	}
}

// Columns of kerb top are titled by a word of the name that --sort and JSON have for them.
func TestTopColumnsAreNames(t *testing.T) {
	for _, table := range topTables {
		for _, c := range table.columns {
			first, _, _ := strings.Cut(strings.ToLower(c.title), " ")
			words := strings.Split(c.id, "-")
			if !slices.Contains(words, strings.TrimSuffix(first, "/s")) {
				t.Errorf("%s: the column %s is titled %s", table.name, c.id, c.title)
			}
			if !strings.HasPrefix(strings.ToLower(c.json), strings.Join(words, "")) {
				t.Errorf("%s: the column %s is called %s in JSON", table.name, c.id, c.json)
			}
		}
	}
}

// fullDisk rejects lines while it is full.
type fullDisk struct {
	full bool
	text string
}

func (d *fullDisk) WriteLine(line []byte) error {
	if d.full {
		return unix.ENOSPC
	}
	d.text += string(line)
	return nil
}

func (*fullDisk) Close() error { return nil }

// A failure to write is reported once, and afterwards the number of lost lines, also when the agent exits.
func TestFlowsOfAFullDisk(t *testing.T) {
	var errs strings.Builder
	disk := &fullDisk{}
	f := &flowsLog{disk, &errs, 0}
	for _, c := range []struct {
		full bool
		body string
	}{{false, `{"service":"a"}`}, {true, `{"service":"b"} {"missing":{"module":"m","others":3}}`},
		{false, `{"service":"c"}`}} {
		disk.full = c.full
		if err := f.copy(strings.NewReader(c.body)); err != nil {
			t.Fatal(err)
		}
	}
	var services []string
	for lines := json.NewDecoder(strings.NewReader(disk.text)); ; {
		var l v1alpha1.FlowLine
		if lines.Decode(&l) != nil {
			break
		}
		services = append(services, l.Service)
	}
	want := "flows are lost, until they can be written again: no space left on device\n2 lines of flows were lost\n"
	if errs.String() != want || strings.Join(services, " ") != "a c" {
		t.Errorf("%v, and it says %q", services, errs.String())
	}
	if err := f.copy(strings.NewReader(`{"error":"flows: no answer"}`)); err == nil || err.Error() != "flows: no answer" {
		t.Error(err)
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0B", 999: "999B", 1000: "1kB", 999_499: "999kB", 999_500: "1MB",
		18_446_744_073_709_551_615: "18.4EB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
