// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/schema"
)

// register adds an operation to the routes and to the document. The document gets the parameters from the tags of I:
// path, query or header, and the rest from huma. huma.Register would do the same, but link 20 KB for each I.
func register[I any](s *Server, op huma.Operation, do func(context.Context, *I) (any, error)) {
	s.handle(&op, reflect.TypeFor[I](), func(w http.ResponseWriter, r *http.Request, in any) error {
		out, err := do(r.Context(), in.(*I))
		if err == nil {
			writeAnswer(w, out)
		}
		return err
	})
}

// handle adds an operation that writes its answer itself, or nothing if it fails. in is the struct of its parameters.
func (s *Server) handle(op *huma.Operation, in reflect.Type,
	serve func(w http.ResponseWriter, r *http.Request, in any) error) {
	schemas := s.doc.Components.Schemas
	read := parametersOf(in, schemas)
	for _, p := range read {
		op.Parameters = append(op.Parameters, p.Param)
	}
	op.Responses["default"] = &huma.Response{Description: "Error", Content: map[string]*huma.MediaType{
		problemType: {Schema: schemas.Schema(reflect.TypeFor[Problem](), true, "")}}}
	s.doc.AddOperation(op)
	compiled := sync.OnceValue(read.schema) // most operations are never used on a node
	method, path := op.Method, op.Path      // no more of it: the document is dropped
	s.mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
		input := reflect.New(in)
		err := read.into(input.Elem(), r, compiled())
		if err == nil {
			if b, ok := input.Interface().(interface{ read(*http.Request) }); ok {
				b.read(r)
			}
			err = serve(w, r, input.Interface())
		}
		if err != nil {
			writeProblem(w, s.problem(err, method, path))
		}
	})
}

// writeAnswer writes an answer. It fails if the client has disconnected.
func writeAnswer(w http.ResponseWriter, out any) {
	if one, ok := out.(*oneResource); ok {
		w.Header().Set("ETag", one.ETag)
		out = one.Body
	}
	w.Header().Set("Content-Type", "application/json")
	to := json.NewEncoder(w)
	to.SetEscapeHTML(false)
	_ = to.Encode(out)
}

// parameters are the parameters of an operation, in the order of the fields.
type parameters []parameter

type parameter struct {
	*huma.Param
	field []int  // of the input
	unset string // what an absent one is
}

// parametersOf returns the path, query and header parameters of an input type by its struct tags. Query lists are
// comma-separated (explode is false).
func parametersOf(in reflect.Type, schemas huma.Registry) (all parameters) {
	for _, f := range reflect.VisibleFields(in) {
		for _, place := range places {
			name := f.Tag.Get(place)
			if name == "" {
				continue
			}
			schema := huma.SchemaFromField(schemas, f, "")
			p := &huma.Param{Name: name, In: place, Description: schema.Description, Schema: schema,
				Required: place == "path" || f.Tag.Get("required") == "true"}
			if place == "query" {
				p.Explode = new(bool)
			}
			all = append(all, parameter{p, f.Index, f.Tag.Get("default")})
		}
	}
	return all
}

// places are the possible locations of parameters. Query parameters must be known, and may occur only once.
var places = []string{"path", "query", "header"}

// schema returns the schema of an object with the parameters of each location.
func (all parameters) schema() *schema.Schema {
	tree := map[string]any{}
	for _, place := range places {
		properties, required := map[string]any{}, []string{}
		for _, p := range all {
			if p.In != place {
				continue
			}
			if properties[p.Name] = p.Schema; p.Required {
				required = append(required, p.Name)
			}
		}
		tree[place] = map[string]any{"type": "object", "properties": properties, "required": required}
	}
	compiled, err := schema.Compile(map[string]any{"properties": tree}, true)
	if err != nil {
		panic(err) // of the program's own types
	}
	return compiled
}

// into sets the fields of input from the request, if all of it is valid.
func (all parameters) into(input reflect.Value, r *http.Request, s *schema.Schema) error {
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	values := map[string]map[string]any{"path": {}, "query": {}, "header": {}}
	for name := range query {
		values["query"][name] = query.Get(name)
	}
	for _, p := range all {
		text := cmp.Or(map[string]string{"path": r.PathValue(p.Name), "query": query.Get(p.Name),
			"header": r.Header.Get(p.Name)}[p.In], p.unset)
		if bare := p.In == "query" && query.Has(p.Name) && p.Schema.Type == huma.TypeBoolean; text == "" && !bare {
			delete(values[p.In], p.Name)
			continue
		}
		values[p.In][p.Name] = set(input.FieldByIndex(p.field), text)
	}
	return s.Validate(map[string]any{"path": values["path"], "query": values["query"], "header": values["header"]})
}

// parseQuery rejects what url.URL.Query ignores: a request whose dryRun=true was ignored would make the change.
func parseQuery(text string) (url.Values, error) {
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, &apierrors.Invalid{Field: "query", Reason: err.Error()}
	}
	for name, values := range query {
		if len(values) > 1 {
			return nil, &apierrors.Invalid{Field: "query", Reason: fmt.Sprintf("%s is there %d times", name, len(values))}
		}
	}
	return query, nil
}

// set sets a field to the value of text, and returns it as JSON. Text that does not fit the field's type is returned
// unchanged: its schema reports the error.
func set(field reflect.Value, text string) any {
	switch field.Kind() {
	case reflect.String:
		field.SetString(text)
	case reflect.Bool:
		if value, err := strconv.ParseBool(text); err == nil {
			field.SetBool(value)
			return value
		}
	case reflect.Int, reflect.Int64:
		if value, err := strconv.ParseInt(text, 10, 64); err == nil {
			field.SetInt(value)
			return float64(value)
		}
	case reflect.Uint16: // the schema has the maximum for larger types
		if value, err := strconv.ParseUint(text, 10, 64); err == nil {
			field.SetUint(value)
			return float64(value)
		}
	default:
		panic("parameters of type " + field.Type().String() + " are not supported")
	}
	return text
}
