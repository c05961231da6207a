// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// maxLine is the longest line that is kept until its end is written.
const maxLine = 64 << 10

// relay carries the output of a process into the agent's log: records of slog as they are, other lines as errors.
type relay struct {
	log   *slog.Logger
	rest  []byte // a line without its end
	first string // the first line that is no record: why the process ends
}

func (r *relay) Write(data []byte) (int, error) {
	r.rest = append(r.rest, data...)
	for {
		line, rest, ended := bytes.Cut(r.rest, []byte("\n"))
		if !ended && len(r.rest) < maxLine {
			return len(data), nil
		}
		r.rest = rest
		r.line(line)
	}
}

func (r *relay) line(line []byte) {
	var fields map[string]any
	var level slog.Level
	if json.Unmarshal(line, &fields) == nil {
		message, isText := fields[slog.MessageKey].(string)
		name, _ := fields[slog.LevelKey].(string)
		if isText && level.UnmarshalText([]byte(name)) == nil {
			r.log.LogAttrs(context.Background(), level, message, attributes(fields)...)
			return
		}
	}
	text := strings.TrimSpace(string(line))
	if r.first == "" {
		r.first = text[:min(len(text), 500)]
	}
	r.log.Error("output of an integration", "line", text)
}

func attributes(fields map[string]any) (out []slog.Attr) {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if key != slog.MessageKey && key != slog.LevelKey && key != slog.TimeKey {
			out = append(out, slog.Any(key, fields[key]))
		}
	}
	return out
}
