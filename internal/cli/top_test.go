// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// topSeries are of two services and a module; their values in the first sample are 1, 2, 3, ...
var topSeries = []v1alpha1.Series{
	{Name: "kerb_service_packets_per_second", Service: "web", Direction: "egress"},
	{Name: "kerb_service_packets_per_second", Service: "web", Direction: "ingress"},
	{Name: "kerb_service_bytes_per_second", Service: "web", Direction: "ingress"},
	{Name: "kerb_service_packets_per_second", Service: "db", Direction: "egress"},
	{Name: "kerb_service_dropped_packets_per_second", Service: "db"},
	{Name: "kerb_module_packets_per_second", Module: "fw", Direction: "ingress", Verdict: "next"},
	{Name: "kerb_module_packets_per_second", Module: "fw", Direction: "ingress", Verdict: "drop"},
	{Name: "kerb_module_packets_per_second", Module: "fw", Direction: "egress", Verdict: "drop"},
	{Name: "kerb_module_memory_bytes", Module: "fw"},
	{Name: "kerb_dropped_packets_per_second", Module: "fw", Reason: "policy"},
	{Name: "kerb_dropped_packets_per_second", Module: "fw", Reason: "state"},
	{Name: "process_cpu_seconds_per_second"},
	{Name: "kerb_problems"},
}

// topLines are samples of each second: in the second one there is twice as much.
func topLines(samples int) []v1alpha1.HistoryLine {
	lines := []v1alpha1.HistoryLine{{Step: 1, Series: topSeries}}
	for n := range samples {
		l := v1alpha1.HistoryLine{Time: 1700000000 + float64(n)}
		for i := range topSeries {
			l.Values = append(l.Values, float32((n+1)*(i+1)))
		}
		lines = append(lines, l)
	}
	return lines
}

func topViewOf(t *testing.T, o topOptions, lines []v1alpha1.HistoryLine) *topView {
	t.Helper()
	v := newTopView(o)
	for _, l := range lines {
		if err := v.take(l); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

func seconds(n int) topOptions {
	return topOptions{table: topTables[0], interval: time.Duration(n) * time.Second}
}

// Rows add up the series that are about them.
func TestTopRows(t *testing.T) {
	var h sampledHistory
	for _, l := range topLines(2) {
		if err := h.take(l, 10); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{
		"services": `[{"droppedPacketsPerSecond":10,"egressBytesPerSecond":0,"egressPacketsPerSecond":8,"ingressBytesPerSecond":0,` +
			`"ingressPacketsPerSecond":0,"packetsPerSecond":8,"service":"db"},` +
			`{"droppedPacketsPerSecond":0,"egressBytesPerSecond":0,"egressPacketsPerSecond":2,"ingressBytesPerSecond":6,` +
			`"ingressPacketsPerSecond":4,"packetsPerSecond":6,"service":"web"}]`,
		"modules": `[{"bytesPerSecond":0,"dropPacketsPerSecond":30,"memoryBytes":18,"module":"fw","nextPacketsPerSecond":12,` +
			`"packetsPerSecond":42,"redirectPacketsPerSecond":0,"replyPacketsPerSecond":0}]`,
		"drops": `[{"droppedPacketsPerSecond":22,"module":"fw","reason":"state"},` +
			`{"droppedPacketsPerSecond":20,"module":"fw","reason":"policy"}]`,
	}
	for _, table := range topTables {
		var out, compact bytes.Buffer
		err := (&app{output: "json"}).printTop(&out, table, table.choose(table.rows(&h, 1), "", table.busiest, false))
		if err != nil || json.Compact(&compact, out.Bytes()) != nil || compact.String() != want[table.name] {
			t.Errorf("%s: %v\n%s\nwant\n%s", table.name, err, compact.String(), want[table.name])
		}
	}
	mean := topTables[2].rows(&h, 2)
	if mean[0].figures[2] != 15 { // of 10 and 20
		t.Errorf("the mean is %v", mean[0].figures)
	}
	nan := float32(math.NaN())
	if meanOf(v1alpha1.Values{nan, 3, nan, 5}) != 4 || meanOf(v1alpha1.Values{nan}) != 0 {
		t.Error("what was not measured counts")
	}
}

func TestTopOptions(t *testing.T) {
	for _, o := range []topOptions{{interval: time.Millisecond, table: topTables[0]},
		{interval: time.Second, count: -1, table: topTables[0]},
		{interval: time.Second, sort: "reason", table: topTables[0]}} {
		if err := o.check(nil); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	o := topOptions{interval: time.Second, sort: "reason", table: topTables[0]}
	if err := o.check([]string{"drops"}); err != nil || o.table.name != "drops" {
		t.Error(err, o.table.name)
	}
}

// screen returns the text of a view, with single spaces.
func screen(v *topView, width, height int) string {
	lines := v.draw(width, height)
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

// Keys choose table, order and rows.
func TestTopKeys(t *testing.T) {
	v := topViewOf(t, seconds(1), topLines(3))
	shows := func(keys string, want ...string) {
		t.Helper()
		for _, k := range splitKeys(keys) {
			if v.key(k) {
				t.Fatalf("%q quits", k)
			}
		}
		at, text := 0, screen(v, 80, 24)
		for _, w := range want {
			found := strings.Index(text[at:], w)
			if found < 0 {
				t.Fatalf("after %q there is no %q in order:\n%s", keys, w, text)
			}
			at += found
		}
	}
	shows("", "agent: 3600.0% of a CPU", "problems: 39", "[services]", "SERVICE PACKETS/S* EGRESS INGRESS", "db 12 12 0",
		"▃▆█", "web")
	shows("\x1b[D", "SERVICE*", "db", "web")
	shows("r", "SERVICE^", "web", "db")
	shows("m", "[modules]", "MODULE PACKETS/S*", "fw")
	shows("\t", "[drops]", "fw state 33", "fw policy 30")
	shows("/polic", "filter: polic_", "fw policy")
	if text := screen(v, 80, 24); strings.Contains(text, "fw state") {
		t.Errorf("the filter leaves others:\n%s", text)
	}
	shows("\x7f\x7fq\r", "filter: polq (Esc: all)", "nothing yet") // q is a character of the filter here
	shows("\x1b", "fw state", "fw policy")
	shows("?", "Esc clears", "quit")
	shows("?s\x1bOB", "[services]", "SERVICE^") // reversed as it was left
	shows("p", "paused")
	if err := v.take(topLines(9)[9]); err != nil {
		t.Fatal(err)
	}
	shows("", "paused", "web 9", "db 12")
	shows("p", "web 27", "db 36")
	if !v.key("q") {
		t.Error("q does not quit")
	}
}

// The screen has as many lines and columns as the terminal, also after scrolling; names are truncated, not wrapped.
func TestTopFits(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {20, 3}, {1, 1}, {200, 2}} {
		v := topViewOf(t, seconds(1), topLines(2))
		for _, key := range []string{"", "\x1b[F", "\x1b[6~", "\x1b[H", "\x1b[A", "m", "d", "?"} {
			v.key(key)
			lines := v.draw(size[0], size[1])
			for _, l := range lines {
				if n := len([]rune(l)); n > size[0] {
					t.Errorf("%v: a line of %d columns: %q", size, n, l)
				}
			}
			if len(lines) > size[1] {
				t.Errorf("%v: %d lines", size, len(lines))
			}
		}
	}
	v := topViewOf(t, seconds(1), topLines(2))
	v.key("\x1b[F")
	if text := screen(v, 80, 4); !strings.Contains(text, "web") || strings.Contains(text, "db") {
		t.Errorf("at the end is not the last row:\n%s", text)
	}
}

// A new series does not remove the samples of others, and repeated samples are ignored.
func TestTopKeepsSamples(t *testing.T) {
	lines := topLines(2)
	more := v1alpha1.HistoryLine{Step: 1, Series: append([]v1alpha1.Series{{Name: "kerb_dropped_packets_per_second",
		Module: "px", Reason: "no_route"}}, topSeries...)}
	next := v1alpha1.HistoryLine{Time: lines[2].Time + 1, Values: append(v1alpha1.Values{5}, lines[2].Values...)}
	v := topViewOf(t, topOptions{table: topTables[2], interval: time.Second}, append(lines, more, next, next))
	rows := map[string][]float64{}
	for _, r := range v.options.table.rows(&v.samples, 1) {
		rows[r.names[1]] = r.graph
	}
	if got := rows["policy"]; len(got) != 3 || got[0] != 10 || got[2] != 20 {
		t.Errorf("policy: %v", got)
	}
	if got := rows["no_route"]; len(got) != 3 || !math.IsNaN(got[0]) || got[2] != 5 {
		t.Errorf("no_route: %v", got)
	}
}

// topAgent serves samples up to the present.
func topAgent(t *testing.T, names ...string) *app {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/v1/history?follow=true" {
			t.Error(r.URL)
		}
		lines := topLines(3)
		for i, name := range names {
			lines[0].Series[i].Service = name
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, l := range lines {
			_ = json.NewEncoder(w).Encode(l)
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return &app{socket: socket, output: "table"}
}

// terminalEnd is the user's end of a terminal.
type terminalEnd struct {
	t   *testing.T
	pty *os.File
	all string
}

// shows reads until a text appears.
func (e *terminalEnd) shows(want string) {
	e.t.Helper()
	part := make([]byte, 4096)
	for !strings.Contains(e.all, want) {
		n, err := e.pty.Read(part)
		if err != nil {
			e.t.Fatalf("%v; no %q in %q", err, want, e.all)
		}
		e.all += string(part[:n])
	}
}

func (e *terminalEnd) types(keys string) {
	e.t.Helper()
	e.all = ""
	if _, err := e.pty.WriteString(keys); err != nil {
		e.t.Fatal(err)
	}
}

// On a terminal, kerb top uses the alternate screen, reads keys without Enter, and restores the terminal.
func TestTopOnATerminal(t *testing.T) {
	pty, terminal := openTerminal(t)
	a := topAgent(t)
	before, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.topScreen(t.Context(), terminal, terminal, seconds(1)) }()
	e := &terminalEnd{t: t, pty: pty}
	e.shows("\x1b[?1049h")
	e.shows("[services]")
	e.shows("web")
	e.types("m")
	e.shows("[modules]")
	e.shows("REDIRECT/S")
	e.types("\x1b[C")
	e.shows("BYTES/S*")
	e.types("q")
	e.shows("\x1b[?1049l")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	after, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is left as %+v, %v; was %+v", after, err, before)
	}
}

// Names cannot control the terminal.
func TestTopShowsNamesAsText(t *testing.T) {
	pty, terminal := openTerminal(t)
	v := topViewOf(t, seconds(1), topLines(1))
	v.samples.Series[0].Service = "evil\x1b]0;title\x07"
	if err := drawTo(terminal, v); err != nil {
		t.Fatal(err)
	}
	e := &terminalEnd{t: t, pty: pty}
	e.shows("evil\u241b]0;title\u2407")
}
