// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// DecodeConfig decodes a config over the defaults in into, and returns it if all checks accept it. An empty config has
// no properties. Unknown properties are errors. Errors are *ConfigError, or those of the checks.
func DecodeConfig[T any](raw json.RawMessage, into *T, checks ...func(*T) error) (*T, error) {
	if len(raw) > 0 {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(into); err != nil {
			return nil, configError(err)
		}
	}
	for _, check := range checks {
		if err := check(into); err != nil {
			return nil, err
		}
	}
	return into, nil
}

// configError translates errors of encoding/json into terms of the config. Errors of properties with their own decoder
// are returned unchanged.
func configError(err error) error {
	var own *ConfigError
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &own) {
		return err
	}
	if errors.As(err, &wrong) && wrong.Field != "" {
		return ConfigErrorf(wrong.Field, "want %s, not %s", jsonType(wrong.Type.Kind()), wrong.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return ConfigErrorf(strings.Trim(name, `"`), "unknown property")
	}
	return ConfigErrorf("config", "%v", err)
}

func jsonType(k reflect.Kind) string {
	switch k {
	case reflect.Slice:
		return "array"
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.String, reflect.Bool:
		return k.String()
	}
	return "number"
}

// ConfigErrorf returns a *ConfigError.
func ConfigErrorf(field, format string, args ...any) error {
	return &ConfigError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// PrefixField prefixes the field of a *ConfigError with the path of the object that contains it. Other errors are
// returned unchanged.
func PrefixField(path string, err error) error {
	var wrong *ConfigError
	if !errors.As(err, &wrong) {
		return err
	}
	return &ConfigError{Field: path + "." + wrong.Field, Reason: wrong.Reason}
}

// Duration is a time.Duration that configs write as a string, such as 1m30s.
type Duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	*d = Duration(v)
	return err
}

// String returns the duration as configs write it.
func (d Duration) String() string { return time.Duration(d).String() }
