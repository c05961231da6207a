// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// recorder forwards output, and records when each line was completed. It omits progress messages, which are
// overwritten.
type recorder struct {
	io.Writer
	started time.Time
	partial []byte
	lines   []printed
}

type printed struct {
	at   time.Duration
	text string // with the escape sequences of printer.paint
}

func (r *recorder) Write(b []byte) (int, error) {
	for _, c := range b {
		switch c {
		case '\n':
			r.lines = append(r.lines, printed{time.Since(r.started), string(r.partial)})
			r.partial = nil
		case '\r':
			r.partial = nil
		default:
			r.partial = append(r.partial, c)
		}
	}
	return r.Writer.Write(b)
}

// The picture shows a terminal with this number of rows and columns, in pixels of the SVG's own scale.
const (
	pictureRows, pictureColumns = 26, 112
	rowHeight, columnWidth      = 17.0, 7.23
	margin                      = 14.0
)

// Pauses before a line are shortened to maxPause, and a line is shown for at least minPause.
const minPause, maxPause = 60 * time.Millisecond, 900 * time.Millisecond

const pictureHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">
<style>
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; fill: #d4d4d4; white-space: pre }
.bold { font-weight: bold; fill: #fff } .dim { fill: #8b949e } .red { fill: #ff7b72 } .green { fill: #56d364 } .cyan { fill: #79c0ff }
.line { opacity: 0; animation: show 1ms forwards }
.all { animation: scroll %.2fs step-end forwards }
@keyframes show { to { opacity: 1 } }
@keyframes scroll {
%s}
@media (prefers-reduced-motion) { .line { opacity: 1; animation: none } .all { animation: none; transform: translateY(%.0fpx) } }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
<svg x="%.0f" y="%.0f" width="%.0f" height="%.0f" xml:space="preserve"><g class="all">
`

// writePicture draws the lines as an animated SVG: a terminal in which they appear with the recorded timing, long
// pauses shortened.
func writePicture(path, title string, lines []printed) error {
	var scroll, body strings.Builder
	times, total := shorten(lines)
	for i, l := range lines {
		if hidden := i + 1 - pictureRows; hidden > 0 {
			fmt.Fprintf(&scroll, "%.2f%% { transform: translateY(-%.0fpx) }\n", 100*times[i].Seconds()/total.Seconds(),
				float64(hidden)*rowHeight)
		}
		if text := spans(clip(l.text)); text != "" {
			fmt.Fprintf(&body, `<text class="line" style="animation-delay:%.2fs" y="%.0f">%s</text>`+"\n",
				times[i].Seconds(), float64(i+1)*rowHeight-4, text)
		}
	}
	width, height := pictureColumns*columnWidth, pictureRows*rowHeight
	end := float64(max(0, len(lines)-pictureRows)) * rowHeight
	fmt.Fprintf(&scroll, "100%% { transform: translateY(-%.0fpx) }\n", end)
	var out bytes.Buffer
	fmt.Fprintf(&out, pictureHead, width+2*margin, height+2*margin, html.EscapeString(title), total.Seconds(),
		scroll.String(), -end,
		margin, margin, width, height)
	out.WriteString(body.String() + "</g></svg>\n</svg>\n")
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// shorten returns the time of each line, and the total duration with a final pause.
func shorten(lines []printed) (times []time.Duration, total time.Duration) {
	var before time.Duration
	for _, l := range lines {
		total += min(max(l.at-before, minPause), maxPause)
		times, before = append(times, total), l.at
	}
	return times, total + maxPause
}

var escape = regexp.MustCompile("\x1b\\[([0-9]*)[mK]")

// clip truncates a line that is wider than the picture, not counting escape sequences.
func clip(line string) string {
	var out strings.Builder
	columns := 0
	for len(line) > 0 {
		if at := escape.FindStringIndex(line); at != nil && at[0] == 0 {
			out.WriteString(line[:at[1]])
			line = line[at[1]:]
			continue
		}
		_, size := utf8.DecodeRuneInString(line)
		if columns++; columns <= pictureColumns {
			out.WriteString(line[:size])
		}
		line = line[size:]
	}
	return out.String()
}

// spans converts escape sequences to SVG elements.
func spans(line string) string {
	class := map[string]string{bold: "bold", dim: "dim", red: "red", green: "green", cyan: "cyan"}
	var out strings.Builder
	for len(line) > 0 {
		at := escape.FindStringSubmatchIndex(line)
		if at == nil {
			break
		}
		out.WriteString(html.EscapeString(line[:at[0]]))
		if c := class[line[at[2]:at[3]]]; c != "" {
			out.WriteString(`<tspan class="` + c + `">`)
		} else if line[at[2]:at[3]] == "0" {
			out.WriteString("</tspan>")
		}
		line = line[at[1]:]
	}
	return out.String() + html.EscapeString(line)
}
