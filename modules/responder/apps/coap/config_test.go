// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

func TestConfigMistakes(t *testing.T) {
	many := make([]string, MaxResources+1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"path": "r%d"}`, i)
	}
	for config, field := range map[string]string{
		`{}`: "resources",
		`{"resources": [` + strings.Join(many, ",") + `]}`:                             "resources",
		`{"resources": [{"path": "a"}, {"path": "/a"}]}`:                               "resources[1]",
		`{"resources": [{"path": "` + strings.Repeat("x", 63) + `"}]}`:                 "resources[0]",
		`{"resources": [{"path": "%zz"}]}`:                                             "resources[0]",
		`{"resources": [{"path": "a", "maxAge": "1500ms"}]}`:                           "resources[0]",
		`{"resources": [{"path": "a", "maxAge": "-1s"}]}`:                              "resources[0]",
		`{"resources": [{"path": "a", "value": "` + strings.Repeat("x", 1025) + `"}]}`: "resources[0]",
		`{"resources": [{"path": "a", "contentFormat": "application/none"}]}`:          "resources.contentFormat",
		`{"resources": [{"path": "a", "contentFormat": 65536}]}`:                       "resources.contentFormat",
		`{"resources": [{"path": "a"}], "hosts": [""]}`:                                "hosts[0]",
		`{"resources": [{"path": "a"}], "other": 1}`:                                   "other",
		`{"resources": [{}]}`:                                                          "resources[0]",
		`{"resources": [{"path": 5}]}`:                                                 "resources.path",
		`{"resources": [{"path": "a", "maxAge": 30}]}`:                                 "resources.maxAge",
		`{"resources": {}}`:                                                            "resources",
	} {
		_, err := coap{}.Compile(app.Listener{Name: "coap", Port: port, Config: json.RawMessage(config)})
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%.80s: %v, want a mistake in %s", config, err, field)
		}
	}
}

func TestPaths(t *testing.T) {
	for text, want := range map[string][]string{"": nil, "/": nil, "a": {"a"}, "/a/b": {"a", "b"}, "a%2Fb/c": {"a/b", "c"},
		"a/": {"a", ""}, "//": {"", ""}, strings.Repeat("x", 62): {strings.Repeat("x", 62)}} {
		got, err := ParsePath(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %q, %v, want %q", text, got, err, want)
		}
		if again, err := ParsePath(formatPath(got)); err != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%q is written %q, which is %q, %v", want, formatPath(got), again, err)
		}
	}
}

// Read parses the output of Bytes for all lengths.
func TestMessages(t *testing.T) {
	for _, n := range []int{0, 1, 12, 13, 14, 268, 269, 270, 1000} {
		m := &Message{Type: NonConfirmable, Code: GET, ID: 7, Token: []byte{1}, Payload: []byte("x"),
			Options: []Option{{n, make([]byte, n)}, {n + 300, []byte{1}}}}
		if got, err := Read(m.Bytes()); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%d: %+v, %v", n, got, err)
		}
	}
}
