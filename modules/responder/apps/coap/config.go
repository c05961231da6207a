// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// Limits of a listener's config.
const (
	MaxResources = 1024
	MaxHosts     = 16
	maxAgeLimit  = 1<<32 - 1
)

// defaultMaxAge is Max-Age where nothing else is said (RFC 7252, section 5.10.5).
const defaultMaxAge = 60 * time.Second

// Config of a listener whose app is coap.
type Config struct {
	Resources []ResourceConfig `json:"resources"`
	// Hosts that a request may name in Uri-Host; one that names another passes to the server.
	Hosts []string `json:"hosts"`
	// Duplicates of a message get the answer of the first; false: they are answered like new requests.
	Duplicates bool `json:"duplicates"`
}

// ResourceConfig is a path that is answered.
type ResourceConfig struct {
	Path          *string   `json:"path"`
	ContentFormat format    `json:"contentFormat"`
	MaxAge        *duration `json:"maxAge"`
	Value         *string   `json:"value"` // until another one is set
}

// format is a Content-Format by name or number; 0 is none, n is the number n-1.
type format int

// formats by name (RFC 7252, section 12.3, and the registry of IANA).
var formats = map[string]int{
	"text/plain":               0,
	"application/link-format":  40,
	"application/xml":          41,
	"application/octet-stream": 42,
	"application/exi":          47,
	"application/json":         50,
	"application/cbor":         60,
	"application/cwt":          61,
	"application/senml+json":   110,
	"application/sensml+json":  111,
	"application/senml+cbor":   112,
	"application/sensml+cbor":  113,
}

// UnmarshalJSON accepts a name or a number of the Content-Formats registry (RFC 7252, section 12.3). The value is
// stored plus one, so that zero means no format.
func (f *format) UnmarshalJSON(text []byte) error {
	var name string
	if json.Unmarshal(text, &name) != nil {
		n, err := strconv.ParseUint(string(text), 10, 16)
		if err != nil {
			return &sdk.ConfigError{Field: "resources.contentFormat",
				Reason: fmt.Sprintf("%s is neither a name nor a number from 0 to 65535", text)}
		}
		*f = format(n) + 1
		return nil
	}
	n, known := formats[name]
	if !known {
		return &sdk.ConfigError{Field: "resources.contentFormat",
			Reason: fmt.Sprintf("unknown name %q; use its number", name)}
	}
	*f = format(n) + 1
	return nil
}

type duration time.Duration

func (d *duration) UnmarshalJSON(text []byte) error {
	var s string
	err := json.Unmarshal(text, &s)
	if err == nil {
		*(*time.Duration)(d), err = time.ParseDuration(s)
	}
	if err != nil {
		return &sdk.ConfigError{Field: "resources.maxAge", Reason: fmt.Sprintf("%s is no interval such as 30s or 1h", text)}
	}
	return nil
}

// Resource of a listener.
type resource struct {
	path    []byte // as in a request
	name    string // as people write it
	format  int    // -1: none
	maxAge  uint32
	initial []byte // value of the config; nil: none
}

// Listener is a compiled Config.
type Listener struct {
	name       string
	config     json.RawMessage
	resources  []*resource
	byPath     map[string]*resource
	hosts      []string
	duplicates bool
}

// compile checks a listener's config. Errors are *sdk.ConfigError.
func compile(in app.Listener) (*Listener, error) {
	c := Config{Duplicates: true}
	if err := app.Decode(in.Config, &c); err != nil {
		return nil, err
	}
	l := &Listener{name: in.Name, config: in.Config, byPath: map[string]*resource{}, duplicates: c.Duplicates}
	if len(c.Resources) == 0 || len(c.Resources) > MaxResources {
		return nil, &sdk.ConfigError{Field: "resources", Reason: fmt.Sprintf("%d of them; must be 1 to %d", len(c.Resources),
			MaxResources)}
	}
	for i := range c.Resources {
		if err := l.addResource(&c.Resources[i]); err != nil {
			return nil, &sdk.ConfigError{Field: fmt.Sprintf("resources[%d]", i), Reason: err.Error()}
		}
	}
	if len(c.Hosts) > MaxHosts {
		return nil, &sdk.ConfigError{Field: "hosts", Reason: fmt.Sprintf("%d of them; at most %d are possible", len(c.Hosts),
			MaxHosts)}
	}
	for i, host := range c.Hosts {
		if len(host) == 0 || len(host) > MaxPath {
			return nil, &sdk.ConfigError{Field: fmt.Sprintf("hosts[%d]", i),
				Reason: fmt.Sprintf("must have 1 to %d bytes", MaxPath)}
		}
		l.hosts = append(l.hosts, host)
	}
	return l, nil
}

// addResource keeps the path as requests encode it, so that the data plane compares bytes and decodes nothing.
func (l *Listener) addResource(c *ResourceConfig) error {
	if c.Path == nil {
		return errors.New("missing path")
	}
	segments, err := ParsePath(*c.Path)
	if err != nil {
		return fmt.Errorf("path %q: %w", *c.Path, err)
	}
	r := &resource{path: encodePath(segments), name: formatPath(segments), format: int(c.ContentFormat) - 1}
	if _, twice := l.byPath[string(r.path)]; twice {
		return fmt.Errorf("path %q is there twice", *c.Path)
	}
	age := defaultMaxAge
	if c.MaxAge != nil {
		age = time.Duration(*c.MaxAge)
	}
	if r.maxAge, err = seconds(age); err != nil {
		return fmt.Errorf("maxAge: %w", err)
	}
	if c.Value != nil {
		if r.initial = []byte(*c.Value); len(r.initial) > MaxValue {
			return errValueLength(len(r.initial))
		}
	}
	l.byPath[string(r.path)] = r
	l.resources = append(l.resources, r)
	return nil
}

func seconds(d time.Duration) (uint32, error) {
	if n := d / time.Second; n*time.Second != d || n < 0 || n > maxAgeLimit {
		return 0, fmt.Errorf("%v; must be whole seconds, at most 2^32-1 of them", d)
	}
	return uint32(d / time.Second), nil
}

func errValueLength(n int) error {
	return fmt.Errorf("the value has %d bytes; at most %d can be answered", n, MaxValue)
}
