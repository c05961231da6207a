// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"encoding/json"
	"errors"
	"net/http"
)

// NotFound is an error about something that does not exist.
type NotFound string

func (n NotFound) Error() string { return string(n) }

// Answer writes a value as JSON, or an error as problem+json (RFC 9457): 400 for a *ConfigError, 404 for a NotFound,
// otherwise 500.
func Answer(w http.ResponseWriter) func(any, error) {
	return func(v any, err error) {
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			status := http.StatusInternalServerError
			var wrong *ConfigError
			var missing NotFound
			switch {
			case errors.As(err, &wrong):
				status = http.StatusBadRequest
			case errors.As(err, &missing):
				status = http.StatusNotFound
			}
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			v = map[string]any{"title": http.StatusText(status), "status": status, "detail": err.Error()}
		}
		_ = json.NewEncoder(w).Encode(v) // the client has disconnected
	}
}
