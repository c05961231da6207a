// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// topSamples is the number of samples in graphs.
const topSamples = 60

// topView is the state of the screen.
type topView struct {
	options topOptions
	sort    map[*topTable]int
	reverse map[*topTable]bool
	first   int // row
	typing  bool
	paused  bool
	help    bool

	samples sampledHistory
	shown   sampledHistory // samples, while paused those at the pause
	trouble string         // why there are no samples
}

func newTopView(o topOptions) *topView {
	v := &topView{options: o, sort: map[*topTable]int{}, reverse: map[*topTable]bool{}, trouble: "waiting for samples"}
	for _, t := range topTables {
		v.sort[t] = t.busiest
	}
	if o.sort != "" {
		v.sort[o.table] = o.table.column(o.sort)
	}
	return v
}

// topKeys lists the keys and their functions.
var topKeys = [][2]string{
	{"s, m, d", "services, modules, drops"}, {"Tab", "the next of them"},
	{"left, right", "sort by another column"}, {"r", "reverse the order"},
	{"/", "filter rows by a name; Enter ends, Esc clears"},
	{"up, down, PgUp, PgDn, Home, End", "scroll"},
	{"p", "pause"}, {"?", "this list"}, {"q", "quit"},
}

// key handles a key, as the terminal sends it, and reports whether it ends the program.
func (v *topView) key(k string) (quit bool) {
	if v.typing {
		v.typed(k)
		return false
	}
	t := v.options.table
	switch k {
	case "q":
		return true
	case "s", "m", "d":
		for _, other := range topTables {
			if other.name[0] == k[0] {
				v.options.table, v.first = other, 0
			}
		}
	case "\t":
		for i, other := range topTables {
			if other == t {
				v.options.table, v.first = topTables[(i+1)%len(topTables)], 0
			}
		}
	case "\x1b[D", "<":
		v.sort[t] = max(0, v.sort[t]-1)
	case "\x1b[C", ">":
		v.sort[t] = min(len(t.columns)-1, v.sort[t]+1)
	case "r":
		v.reverse[t] = !v.reverse[t]
	case "/":
		v.typing = true
	case "\x1b":
		v.options.filter, v.help = "", false
	case "p", " ":
		v.paused = !v.paused
	case "?", "h":
		v.help = !v.help
	default:
		v.scroll(k)
	}
	return false
}

// typed handles a key while the filter is edited.
func (v *topView) typed(k string) {
	switch f := &v.options.filter; k {
	case "\r", "\n":
		v.typing = false
	case "\x1b":
		v.typing, *f = false, ""
	case "\x7f", "\b":
		_, n := utf8.DecodeLastRuneInString(*f)
		*f = (*f)[:len(*f)-n]
	default:
		if !strings.ContainsFunc(k, unicode.IsControl) {
			*f += k
		}
	}
	v.first = 0
}

func (v *topView) scroll(k string) {
	const page, most = 10, math.MaxInt32
	by := map[string]int{"\x1b[A": -1, "\x1b[B": 1, "\x1b[5~": -page, "\x1b[6~": page, "\x1b[H": -most, "\x1b[F": most}
	v.first = min(max(0, v.first+by[k]), most) // draw limits it to the number of rows
}

// take adds a line of the agent's response. After a reconnection, the agent may repeat samples.
func (v *topView) take(l v1alpha1.HistoryLine) error {
	if n := len(v.samples.Times); l.Step == 0 && n > 0 && l.Time <= v.samples.Times[n-1] {
		return nil
	}
	err := v.samples.take(l, topSamples)
	if err == nil && l.Step == 0 {
		v.trouble = ""
	}
	return err
}

// draw returns the lines of the screen.
func (v *topView) draw(width, height int) []string {
	if !v.paused {
		v.shown = sampledHistory{Step: v.samples.Step, Omitted: v.samples.Omitted, Times: v.samples.Times}
		for _, s := range v.samples.Series {
			copied := *s
			v.shown.Series = append(v.shown.Series, &copied)
		}
	}
	lines := []string{v.heading(), v.filterLine()}
	if v.help {
		for _, k := range topKeys {
			lines = append(lines, fmt.Sprintf("  %-32s %s", k[0], k[1]))
		}
	} else {
		lines = append(lines, v.table(width, max(1, height-len(lines)-1))...)
	}
	for i, l := range lines {
		lines[i] = cutTo(l, width)
	}
	return lines[:min(len(lines), height)]
}

// heading returns the line with the agent's own resource use.
func (v *topView) heading() string {
	values := map[string]float64{}
	for _, s := range v.shown.Series {
		if s.Service+s.Module == "" && len(s.Values) > 0 {
			values[s.Name] = float64(s.Values[len(s.Values)-1])
		}
	}
	text := "kerb top"
	switch {
	case v.trouble != "":
		text += "  " + oneLine(v.trouble)
	case v.paused:
		text += "  paused"
	}
	if n := len(v.shown.Times); n > 0 {
		text += "  " + time.UnixMilli(int64(v.shown.Times[n-1]*1e3)).Format(time.TimeOnly)
		text += fmt.Sprintf("  agent: %.1f%% of a CPU, %.0f MiB", 100*values["process_cpu_seconds_per_second"],
			values["process_resident_memory_bytes"]/(1<<20))
	}
	if n := values["kerb_problems"]; n > 0 {
		text += fmt.Sprintf("  problems: %.0f (kerb status)", n)
	}
	if v.shown.Omitted > 0 {
		text += fmt.Sprintf("  %d series are left out", v.shown.Omitted)
	}
	return text
}

// filterLine returns the line with the names of the tables, and the filter.
func (v *topView) filterLine() string {
	text := ""
	for _, t := range topTables {
		if t == v.options.table {
			text += "[" + t.name + "] "
		} else {
			text += " " + t.name + "  "
		}
	}
	switch {
	case v.typing:
		return text + " filter: " + v.options.filter + "_"
	case v.options.filter != "":
		return text + " filter: " + v.options.filter + " (Esc: all)"
	}
	return text + " ? keys, q quit"
}

// table returns the header and at most most rows, with a graph if there is space.
func (v *topView) table(width, most int) []string {
	t := v.options.table
	rows := t.choose(t.rows(&v.shown, int(v.options.interval/time.Second)), v.options.filter, v.sort[t], v.reverse[t])
	v.first = max(0, min(v.first, len(rows)-most))
	shown := rows[v.first:min(len(rows), v.first+most)]
	var titles []string
	for i, c := range t.columns {
		if i == v.sort[t] {
			c.title += map[bool]string{false: "*", true: "^"}[v.reverse[t]]
		}
		titles = append(titles, c.title)
	}
	cells := [][]string{titles}
	for _, r := range shown {
		cells = append(cells, t.cells(r))
	}
	lines := aligned(t, cells)
	room := width - utf8.RuneCountInString(lines[0]) - 2
	for i, r := range shown {
		if room >= topSamples/8 {
			lines[i+1] += "  " + spark(r.graph, min(room, topSamples))
		}
	}
	if len(rows) == 0 {
		lines = append(lines, "nothing yet")
	}
	return lines
}

// aligned formats cells as lines: names left-aligned, numbers right-aligned.
func aligned(t *topTable, cells [][]string) (lines []string) {
	widths := make([]int, len(t.columns))
	for _, row := range cells {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range cells {
		var text []string
		for i, cell := range row {
			if w := widths[i]; t.columns[i].of != nil {
				text = append(text, fmt.Sprintf("%-*s", w, cell))
			} else {
				text = append(text, fmt.Sprintf("%*s", w, cell))
			}
		}
		lines = append(lines, strings.Join(text, "  "))
	}
	return lines
}

// spark draws the newest values, scaled to their maximum.
func spark(values []float64, width int) string {
	values = values[max(0, len(values)-width):]
	most, text := 0.0, strings.Builder{}
	for _, v := range values {
		if v > most {
			most = v
		}
	}
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			text.WriteByte(' ')
		case most == 0:
			text.WriteRune(graphLevels[0])
		default:
			text.WriteRune(graphLevels[min(len(graphLevels)-1, int(v/most*float64(len(graphLevels))))])
		}
	}
	return text.String()
}

func cutTo(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width])
}

// canDraw reports whether input and output are a terminal that supports escape sequences.
func canDraw(w io.Writer) bool {
	return isTerminal(w) && isTerminal(os.Stdin) && os.Getenv("TERM") != "dumb"
}

// topScreen shows the view on a terminal until ctx ends or a key ends it.
func (a *app) topScreen(ctx context.Context, in, out *os.File, o topOptions) error {
	restore, err := rawTerminal(in, out)
	if err != nil {
		return err
	}
	defer restore()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines, troubles, keys := make(chan v1alpha1.HistoryLine), make(chan error), make(chan string)
	go a.followForTop(ctx, lines, troubles)
	go readKeys(ctx, in, keys)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	v := newTopView(o)
	for {
		if err := drawTo(out, v); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case err := <-troubles:
			v.trouble = err.Error()
		case k, ok := <-keys:
			if !ok || v.key(k) {
				return nil
			}
		case l := <-lines:
			if err := v.take(l); err != nil {
				return err
			}
		}
	}
}

// followForTop sends samples to lines until ctx ends. It reconnects after a restart of the agent.
func (a *app) followForTop(ctx context.Context, lines chan<- v1alpha1.HistoryLine, troubles chan<- error) {
	for ctx.Err() == nil {
		err := a.readLines(ctx, url.Values{"follow": {"true"}}, func(l v1alpha1.HistoryLine) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case lines <- l:
				return nil
			}
		})
		if err == nil {
			err = errAgentEnded
		}
		select {
		case <-ctx.Done():
		case troubles <- err:
		}
		sdk.Pause(ctx, time.Second)
	}
}

// readKeys sends the keys of the terminal. It may still block in a read when the program ends.
func readKeys(ctx context.Context, in io.Reader, keys chan<- string) {
	defer close(keys)
	buffer := make([]byte, 256)
	for {
		n, err := in.Read(buffer)
		for _, k := range splitKeys(string(buffer[:n])) {
			select {
			case <-ctx.Done():
				return
			case keys <- k:
			}
		}
		if err != nil {
			return
		}
	}
}

// splitKeys splits input into keys: characters, and escape sequences (ECMA-48, 5.4: CSI). It converts Home, End and
// arrows of application mode (SS3) to CSI.
func splitKeys(text string) (keys []string) {
	for text != "" {
		_, n := utf8.DecodeRuneInString(text)
		if strings.HasPrefix(text, "\x1bO") && len(text) > 2 {
			text = "\x1b[" + text[2:]
		}
		if strings.HasPrefix(text, "\x1b[") {
			n = 2
			for n < len(text) && text[n] < '@' {
				n++
			}
			n = min(n+1, len(text))
		}
		keys, text = append(keys, text[:n]), text[n:]
	}
	return keys
}

// drawTo writes a screen in one write.
func drawTo(out *os.File, v *topView) error {
	width, height := 80, 24
	if size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
		width, height = int(size.Col), int(size.Row)
	}
	text := strings.Builder{}
	text.WriteString("\x1b[H")
	for i, l := range v.draw(width, height) {
		l = strings.Map(picture, l)
		switch {
		case i == 2 && !v.help:
			l = "\x1b[7m" + l + "\x1b[0m"
		case i == 0 && wantsColour(out):
			l = "\x1b[1m" + l + "\x1b[0m"
		}
		if i > 0 {
			text.WriteString("\r\n")
		}
		text.WriteString(l + "\x1b[K")
	}
	text.WriteString("\x1b[J")
	_, err := io.WriteString(out, text.String())
	return err
}

// rawTerminal switches the terminal to its alternate screen and to reading single keys. Ctrl-C still interrupts; Ctrl-Z
// is disabled, since it would leave the terminal in this mode.
func rawTerminal(in, out *os.File) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("cannot read the mode of the terminal: %w", err)
	}
	raw := *before
	raw.Lflag &^= unix.ECHO | unix.ICANON
	raw.Iflag &^= unix.IXON
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME], raw.Cc[unix.VSUSP] = 1, 0, 0
	if err := unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("cannot set the mode of the terminal: %w", err)
	}
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l\x1b[?7l") // alternate screen, no cursor, no wrapping
	return func() {
		fmt.Fprint(out, "\x1b[?7h\x1b[?25h\x1b[?1049l")
		_ = unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, before)
	}, nil
}
