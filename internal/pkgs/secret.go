// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/kerb-edge/kerb/internal/schema"
	"github.com/kerb-edge/kerb/sdk"
)

// ResolveSecrets returns config with each {fromFile: PATH} of a property that the schema marks as secret replaced by
// what read returns for the path, in a copy. A config with the secret itself is rejected, since configs are stored
// and shown. Errors are *sdk.ConfigError.
func (m *Manifest) ResolveSecrets(config map[string]any,
	read func(path string) (string, error)) (map[string]any, error) {
	if !marksSecret(m.ConfigSchema) {
		return config, nil
	}
	r := revealer{root: m.ConfigSchema, read: read}
	out, err := r.reveal(m.ConfigSchema, config, nil)
	if err != nil {
		return nil, err
	}
	revealed, _ := out.(map[string]any)
	return revealed, nil
}

// marksSecret reports whether a schema marks any property as secret.
func marksSecret(s any) bool {
	switch s := s.(type) {
	case []any:
		return slices.ContainsFunc(s, marksSecret)
	case map[string]any:
		if s["secret"] == true {
			return true
		}
		for _, sub := range s {
			if marksSecret(sub) {
				return true
			}
		}
	}
	return false
}

type revealer struct {
	root map[string]any
	read func(string) (string, error)
}

// reveal returns a copy of v with secrets in plain text. The schema marks secret fields ("secret": true); path is the
// location of v in the config, for errors.
func (r revealer) reveal(s map[string]any, v any, path []string) (any, error) {
	s = schema.Resolve(r.root, s)
	if secret, _ := s["secret"].(bool); secret {
		return r.open(v, path)
	}
	var err error
	switch v := v.(type) {
	case map[string]any:
		properties, _ := s["properties"].(map[string]any)
		out := make(map[string]any, len(v))
		for name, value := range v {
			property, _ := properties[name].(map[string]any)
			if out[name], err = r.reveal(property, value, append(slices.Clone(path), name)); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []any:
		items, _ := s["items"].(map[string]any)
		out := make([]any, len(v))
		for i, value := range v {
			if out[i], err = r.reveal(items, value, append(slices.Clone(path), strconv.Itoa(i))); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

// open reads a secret. The error does not contain an inline value, which may be the secret itself.
func (r revealer) open(v any, path []string) (any, error) {
	object, _ := v.(map[string]any)
	file, ok := object["fromFile"].(string)
	field := ""
	for _, token := range path {
		if _, err := strconv.Atoi(token); err == nil {
			field += "[" + token + "]"
		} else if field == "" {
			field = token
		} else {
			field += "." + token
		}
	}
	if !ok || len(object) != 1 {
		return nil, &sdk.ConfigError{Field: field, Reason: "is a secret, which is not kept in resources: write it to a " +
			"file, and here {fromFile: PATH}"}
	}
	text, err := r.read(file)
	if err != nil {
		return nil, &sdk.ConfigError{Field: field, Reason: fmt.Sprintf("fromFile: %v", err)}
	}
	return text, nil
}
