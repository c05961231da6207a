// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kerb-edge/kerb/modules/responder"
	"github.com/kerb-edge/kerb/sdk"
)

// application returns the property that has the responder's application of a class, and its value. It is empty if no
// packets of the class are answered.
func (c *class) application() (property string, value json.RawMessage) {
	if c.Fallback != nil {
		return "fallback", c.Fallback
	}
	return "answer", c.Answer
}

// answering makes listeners of the responder of the classes that are answered: each has its class's name and port.
func (c *config) answering() (*responder.Responder, error) {
	listeners := []map[string]json.RawMessage{}
	var of []int
	for i, one := range c.Classes {
		if _, value := one.application(); value == nil {
			continue
		}
		l, err := one.listener()
		if err != nil {
			return nil, within(i, err)
		}
		listeners, of = append(listeners, l), append(of, i)
	}
	raw, err := json.Marshal(map[string]any{"listeners": listeners})
	if err != nil {
		return nil, err
	}
	compiled, err := responder.Control().Compile(raw)
	if err != nil {
		return nil, c.inClass(of, err)
	}
	return compiled.(*responder.Responder), nil
}

// inClass turns the place of a listener in an error into that of its class.
func (c *config) inClass(of []int, err error) error {
	var wrong *sdk.ConfigError
	var i int
	if !errors.As(err, &wrong) {
		return err
	}
	if n, _ := fmt.Sscanf(wrong.Field, "listeners[%d]", &i); n == 0 || i >= len(of) {
		return err
	}
	_, field, _ := strings.Cut(wrong.Field, "].")
	property, _ := c.Classes[of[i]].application()
	return within(of[i], &sdk.ConfigError{Field: property + "." + field, Reason: wrong.Reason})
}

// listener returns the configuration of a responder listener for the class. The name and the port are the class's, and
// a fallback must state its sourceRate: the responder's default is less than many control loops need.
func (c *class) listener() (map[string]json.RawMessage, error) {
	m := &c.Match
	property, value := c.application()
	if c.Direction != "ingress" || !m.Protocol.set || m.Protocol.number != 17 || len(m.Ports) != 1 ||
		m.Ports[0].First != m.Ports[0].Last {
		return nil, &sdk.ConfigError{Field: "match", Reason: "a class that is answered has direction ingress, protocol udp " +
			"and one port"}
	}
	var l map[string]json.RawMessage
	if err := json.Unmarshal(value, &l); err != nil {
		return nil, &sdk.ConfigError{Field: property, Reason: err.Error()}
	}
	for _, name := range []string{"name", "port", "addresses"} {
		if _, there := l[name]; there {
			return nil, &sdk.ConfigError{Field: property + "." + name, Reason: "is the class's: say it there"}
		}
	}
	if rate := string(l["sourceRate"]); property == "fallback" && (rate == "" || rate == "null") {
		return nil, &sdk.ConfigError{Field: "fallback.sourceRate", Reason: "is required: requests per second of a source " +
			"that are answered, 0 for all. The responder's default of 50 is less than many control loops need"}
	}
	l["name"] = json.RawMessage(fmt.Sprintf("%q", c.Name))
	l["port"] = json.RawMessage(fmt.Sprint(m.Ports[0].First))
	return l, nil
}

// answered are the indices of classes that are answered.
func (c *config) answered() (out []int) {
	for i, one := range c.Classes {
		if _, value := one.application(); value != nil {
			out = append(out, i)
		}
	}
	return out
}

// settleAnswers adds what the responder's part of the data plane needs; where nothing is answered, that is next to
// nothing.
func (f *Intercept) settleAnswers(s *sdk.Settings) {
	own := f.answers.Settings()
	s.Constants, s.Shape = own.Constants, own.Shape
	s.Constants["use_answers"] = len(f.answered()) > 0
	for name, n := range own.MaxEntries {
		s.MaxEntries[name] = n
	}
}

// fillAnswers writes the responder's tables and one entry for each answered class into the given half of the map. The
// data plane reads the other half until the caller switches.
func (f *Intercept) fillAnswers(m sdk.Maps, half uint32) error {
	of := f.answered()
	if len(of) == 0 {
		return nil
	}
	if err := f.answers.Fill(m); err != nil {
		return err
	}
	entries, err := f.answers.Entries(m)
	if err != nil {
		return err
	}
	for i, e := range entries {
		if err := m.Put(mapAnswers, half*maxClasses+uint32(of[i]), e); err != nil {
			return err
		}
	}
	return nil
}
