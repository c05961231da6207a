// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		body   string
	}{
		{nil, 200, `{"a":1}`},
		{fmt.Errorf("rule: %w", &ConfigError{Field: "port", Reason: "too large"}), 400, `"detail":"rule: port: too large"`},
		{fmt.Errorf("sign: %w", NotFound("no such value")), 404, `"title":"Not Found"`},
		{errors.New("the map is gone"), 500, `"status":500`},
	} {
		w := httptest.NewRecorder()
		Answer(w)(map[string]int{"a": 1}, c.err)
		kind := map[bool]string{true: "application/json", false: "application/problem+json"}[c.err == nil]
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) || w.Header().Get("Content-Type") != kind {
			t.Errorf("%v: %d %s %s", c.err, w.Code, w.Header(), w.Body)
		}
	}
}
