// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

// member is a member of a JSON object whose order is preserved.
type member struct {
	name  string
	value any
}

type object []member

// decodeOrdered reads one JSON value: object, []any, json.Number, string, bool or nil.
func decodeOrdered(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return orderedValue(d)
}

// orderedValue decodes JSON and preserves the order of members, which become the columns of a table. encoding/json
// would sort them.
func orderedValue(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		out := object{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := orderedValue(d)
			if err != nil {
				return nil, err
			}
			out = append(out, member{name.(string), value})
		}
		_, err = d.Token()
		return out, err
	case json.Delim('['):
		out := []any{}
		for d.More() {
			value, err := orderedValue(d)
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		_, err = d.Token()
		return out, err
	}
	return token, nil
}

// printAnswerTable prints the response of a module as text: plain fields as lines, each list of objects as a table.
func printAnswerTable(w io.Writer, path string, v any) {
	switch v := v.(type) {
	case object:
		printObject(w, path, v)
	case []any:
		if columns := tableColumns(v); columns != nil {
			printRows(w, columns, v)
			return
		}
		for i, value := range v {
			printAnswerTable(w, fmt.Sprintf("%s[%d]", path, i), value)
		}
	default:
		fmt.Fprintf(w, "%s:\t%v\n", path, inCell(v))
	}
}

// printObject prints fields that fit into a line first, then the tables with their names.
func printObject(w io.Writer, path string, o object) {
	var later []member
	for _, m := range o {
		if needsTable(m.value) {
			later = append(later, m)
			continue
		}
		fmt.Fprintf(w, "%s:\t%s\n", strings.TrimPrefix(path+"."+m.name, "."), inCell(m.value))
	}
	for i, m := range later {
		if i > 0 || len(later) < len(o) {
			fmt.Fprintln(w)
		}
		name := strings.TrimPrefix(path+"."+m.name, ".")
		if rows, ok := m.value.([]any); ok && tableColumns(rows) != nil {
			fmt.Fprintf(w, "%s:\n", name)
		}
		printAnswerTable(w, name, m.value)
	}
}

// needsTable reports whether a value is a list of objects, or an object that is not flat.
func needsTable(v any) bool {
	switch v := v.(type) {
	case []any:
		return tableColumns(v) != nil
	case object:
		for _, m := range v {
			switch m.value.(type) {
			case object, []any:
				return true
			}
		}
	}
	return false
}

// tableColumns returns the fields of a list of objects in order of appearance, without those that are always empty.
func tableColumns(rows []any) (columns []string) {
	at := map[string]bool{}
	for _, row := range rows {
		o, ok := row.(object)
		if !ok {
			return nil
		}
		for _, m := range o {
			if !at[m.name] && inCell(m.value) != "" {
				at[m.name] = true
				columns = append(columns, m.name)
			}
		}
	}
	return columns
}

func printRows(w io.Writer, columns []string, rows []any) {
	var header []any
	for _, name := range columns {
		header = append(header, strings.ToUpper(name))
	}
	line(w, header...)
	for _, row := range rows {
		values := map[string]any{}
		for _, m := range row.(object) {
			values[m.name] = m.value
		}
		var cells []any
		for _, name := range columns {
			cells = append(cells, inCell(values[name]))
		}
		line(w, cells...)
	}
}

// inCell formats a value for a cell of a table: a, b or name=value; deeper values as compact JSON.
func inCell(v any) string {
	var parts []string
	switch v := v.(type) {
	case map[string]any:
		var o object
		for _, name := range sortedKeys(v) {
			o = append(o, member{name, v[name]})
		}
		return inCell(o)
	case object:
		for _, m := range v {
			if text := inCell(m.value); text != "" {
				parts = append(parts, m.name+"="+bracketed(m.value, text))
			}
		}
	case []any:
		for _, value := range v {
			parts = append(parts, bracketed(value, inCell(value)))
		}
	default:
		return fmt.Sprint(plain(v))
	}
	return strings.Join(parts, ", ")
}

// eventLine formats a value of a stream as one line: its time, then name=value. Aligned columns would require all
// values.
func eventLine(data []byte) string {
	v, err := decodeOrdered(data)
	o, ok := v.(object)
	if err != nil || !ok {
		return string(data)
	}
	var at, parts []string
	for _, m := range o {
		text := inCell(m.value)
		switch _, isText := m.value.(string); {
		case text == "":
		case m.name == "time":
			at = []string{text}
		case isText && strings.ContainsAny(text, " \t\n\"="):
			parts = append(parts, fmt.Sprintf("%s=%q", m.name, text))
		default:
			parts = append(parts, m.name+"="+bracketed(m.value, text))
		}
	}
	return strings.Join(append(at, parts...), " ")
}

func bracketed(v any, text string) string {
	switch v.(type) {
	case object, []any:
		return "(" + text + ")"
	}
	return text
}

// queries returns the paths that the manifest of a module's package lists.
func (a *app) queries(ctx context.Context, module string) (map[string]string, error) {
	m, err := fetch[v1alpha1.Module](ctx, a, "/v1/modules/"+url.PathEscape(module))
	if err != nil {
		return nil, err
	}
	all, err := fetch[[]v1alpha1.Package](ctx, a, "/v1/packages")
	for _, p := range all {
		if p.Name == m.Spec.Package || p.Source == m.Spec.Package || p.Digest == resource.Status(m.Status).Package.Digest {
			return p.Queries, err
		}
	}
	return nil, err
}

// printQueries lists the queries of a module.
func (a *app) printQueries(cmd *cobra.Command, module string) error {
	queries, err := a.queries(cmd.Context(), module)
	if err != nil {
		return err
	}
	return a.print(cmd.OutOrStdout(), queries, func(w io.Writer) {
		if len(queries) == 0 {
			fmt.Fprintf(w, "the package of module %s lists no paths; its documents may\n", module)
			return
		}
		line(w, "PATH", "ANSWERS")
		for _, path := range sortedKeys(queries) {
			line(w, path, queries[path])
		}
	})
}

// completeQuery completes modules, and then their paths.
func (a *app) completeQuery(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return kindOf(resource.Module).complete(a)(cmd, args, begun)
	}
	queries, err := a.queries(cmd.Context(), args[0])
	if err != nil || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return sortedKeys(queries), cobra.ShellCompDirectiveNoFileComp
}
