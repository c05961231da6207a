// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/decode"
	"github.com/kerb-edge/kerb/internal/parsed"
	"github.com/kerb-edge/kerb/internal/schema"
	"github.com/kerb-edge/kerb/sdk"
)

// QueryFlows is the query of packages that record flows.
const QueryFlows = "flows"

// ManifestName is the file that makes a directory a package.
const ManifestName = "kerb.yaml"

// Contract is the version of <kerb/module.h> that this build understands.
const Contract = 1

// Hooks of packages.
const (
	HookTC      = "tc"
	HookXDP     = "xdp"
	HookSockets = "sockets" // TCP sockets of cgroups, instead of packets; a package has no other hook alongside it
)

// Manifest is the content of kerb.yaml. ManifestSchema is its exact specification.
type Manifest struct {
	Name        string     `json:"name"`
	Version     string     `json:"version"` // semantic version without v
	Description string     `json:"description,omitempty"`
	License     string     `json:"license"`
	Contract    int        `json:"contract"`
	DataPlane   string     `json:"dataplane,omitempty"` // C source; <name>.bpf.c by default
	Hooks       []string   `json:"hooks"`
	Directions  Directions `json:"directions,omitzero"`
	// link types that the module can parse; ethernet by default
	LinkTypes []string `json:"linkTypes,omitempty"`
	// distance from the service among modules of the same priority
	Rank          *int           `json:"rank,omitempty"`
	InterfaceRank *int           `json:"interfaceRank,omitempty"` // like Rank, on interfaces of the node; Rank by default
	Frags         bool           `json:"frags,omitempty"`         // supports multi-buffer XDP packets
	FailurePolicy string         `json:"failurePolicy,omitempty"` // open or closed
	Maps          MapRoles       `json:"maps,omitzero"`
	DropReasons   map[string]int `json:"dropReasons,omitempty"` // name to number, 32 to 63
	Notes         map[string]int `json:"notes,omitempty"`       // of kerb_note: name to number, 1 to 63
	Budget        Budget         `json:"budget,omitzero"`
	Requires      []string       `json:"requires,omitempty"` // kernel features, see Features
	ConfigSchema  map[string]any `json:"configSchema,omitempty"`
	Control       *Control       `json:"control,omitempty"` // if nil, config properties set constants
	// Resources is deprecated; see Capabilities.
	Resources []string `json:"resources,omitempty"`
	// Queries are the paths that the control plane serves (GET), with descriptions, which kerb module query lists.
	Queries map[string]string `json:"queries,omitempty"`
	// Views describe how kerb ui shows the results of queries.
	Views []v1.View `json:"views,omitempty"`
	// RecordsFlows: the query flows returns sdk.FlowRecords, for kerb flows.
	RecordsFlows bool `json:"recordsFlows,omitempty"`
	// Inject is deprecated; see Capabilities.
	Inject bool `json:"inject,omitempty"`
	// Replies: the data plane replies to packets with KERB_REPLY.
	Replies bool `json:"replies,omitempty"`
	// DeferredRedirect: on TC, later modules see the packets that the data plane redirects with kerb_redirect_deferred().
	DeferredRedirect bool `json:"deferredRedirect,omitempty"`
	// Socket is deprecated; see Capabilities.
	Socket bool `json:"socket,omitempty"`
	// Capabilities lists what the agent provides to the control plane. Use GrantedCapabilities, which supports older
	// manifests.
	Capabilities []string `json:"capabilities,omitzero"`
}

// RankOn returns the rank on interfaces of services or of the node.
func (m *Manifest) RankOn(service bool) int {
	if !service && m.InterfaceRank != nil {
		return *m.InterfaceRank
	}
	switch {
	case m.Rank != nil:
		return *m.Rank
	case m.Replies:
		return chain.ReplyRank
	}
	return chain.DefaultRank
}

// hashed returns the manifest as digests cover it. Rank 0 was once the default and omitted; digests must not change,
// since nodes deny packages by digest.
func (m Manifest) hashed() Manifest {
	if m.Rank != nil && *m.Rank == 0 {
		m.Rank = nil
	}
	return m
}

// Directions lists the directions in which packets pass the module, by kind of attach point. The default is all
// directions for which it has a program.
type Directions struct {
	Services   []string `json:"services,omitempty"`
	Interfaces []string `json:"interfaces,omitempty"` // of the node
}

// MapRoles lists the maps whose lifetime differs from that of the module. All others are state: they are kept across
// configurations, and across upgrades that do not change their layout.
type MapRoles struct {
	Config []string `json:"config,omitempty"` // created empty for every configuration
	Shared []string `json:"shared,omitempty"` // shared by all modules of the node that list it
	// Migrate says how an upgrade treats state maps whose layout it changes; MigrateDiscard by default.
	Migrate map[string]string `json:"migrate,omitempty"`
}

// Rules of migration.
const (
	MigrateDiscard = "discard" // the new map is empty
	MigrateExtend  = "extend"  // keeps keys, and truncates or zero-pads values
	MigrateControl = "control" // the new version's control plane fills it from previous.<map>
)

// Budget is the limit that the package declares.
type Budget struct {
	Memory  string `json:"memory,omitempty"`  // of all maps, for example 16Mi
	Latency string `json:"latency,omitempty"` // per packet, for example 200ns
}

// ManifestSchema is the JSON Schema of kerb.yaml, for editors and the documentation.
//
//go:embed manifest.schema.json
var ManifestSchema []byte

var manifestSchema = parsed.New(func() (*schema.Schema, error) { return schema.MustCompile(ManifestSchema), nil })

// ParseManifest parses a manifest. Errors are joined *apierrors.Invalid with positions in file.
func ParseManifest(file string, data []byte) (*Manifest, error) {
	tree, index, err := decode.Object(file, data)
	if err != nil {
		return nil, err
	}
	known, err := manifestSchema.Get()
	if err != nil {
		return nil, err
	}
	if err := known.Validate(tree); err != nil {
		return nil, index.Locate(file, err)
	}
	m, err := decodeManifest(tree)
	if err != nil {
		return nil, index.Locate(file, &apierrors.Invalid{Reason: err.Error()})
	}
	if err := m.check(); err != nil {
		return nil, index.Locate(file, err)
	}
	return m, nil
}

// decodeManifest applies the defaults of a manifest that was checked against the schema.
func decodeManifest(tree map[string]any) (*Manifest, error) {
	data, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	m := Manifest{FailurePolicy: "open"}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	if m.DataPlane == "" {
		m.DataPlane = m.Name + ".bpf.c"
	}
	return &m, nil
}

// check checks what the schema cannot express.
func (m *Manifest) check() error {
	var all []*apierrors.Invalid
	wrong := func(field, format string, args ...any) {
		if field != "" {
			all = append(all, &apierrors.Invalid{Field: field, Reason: fmt.Sprintf(format, args...)})
		}
	}
	if m.Contract != Contract {
		wrong("contract", "is %d; this build of Kerb understands contract %d only", m.Contract, Contract)
	}
	m.checkMaps(wrong)
	field, reason := m.checkSockets()
	wrong(field, "%s", reason)
	m.checkCapabilities(wrong)
	field, reason = m.Control.check()
	wrong(field, "%s", reason)
	if a, b, n := sameReason(m.DropReasons); a != "" {
		wrong("dropReasons."+b, "%d is also the number of %s; give each reason a different number", n, a)
	}
	if a, b, n := sameReason(m.Notes); a != "" {
		wrong("notes."+b, "%d is also the number of %s; give each note a different number", n, a)
	}
	m.checkViews(wrong)
	if m.RecordsFlows && m.Queries[QueryFlows] == "" {
		wrong("recordsFlows", "requires the query %s, which queries does not have", QueryFlows)
	}
	if _, err := ParseBytes(m.Budget.Memory); err != nil {
		wrong("budget.memory", "%v", err)
	}
	if d, err := time.ParseDuration(m.Budget.Latency); m.Budget.Latency != "" && (err != nil || d <= 0) {
		wrong("budget.latency", "%q is not a duration; write for example 200ns or 2us", m.Budget.Latency)
	}
	for i, name := range m.Requires {
		if _, err := parseFeature(name); err != nil {
			wrong(fmt.Sprintf("requires[%d]", i), "%v", err)
		}
	}
	if _, err := m.compileSchema(); err != nil {
		wrong("configSchema", "%v", err)
	}
	return apierrors.Join(all)
}

// checkMaps checks that each map has only one role: config, shared, or state with a migration.
func (m *Manifest) checkMaps(wrong func(field, format string, args ...any)) {
	for i, name := range m.Maps.Config {
		if slices.Contains(m.Maps.Shared, name) {
			wrong(fmt.Sprintf("maps.config[%d]", i),
				"%s is also in maps.shared; a map is either new for every configuration or shared", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Maps.Migrate)) {
		if slices.Contains(m.Maps.Config, name) || slices.Contains(m.Maps.Shared, name) {
			wrong("maps.migrate."+name, "only state maps are migrated, and this one is in maps.config or maps.shared")
		}
		if m.Maps.Migrate[name] == MigrateControl && m.Control == nil {
			wrong("maps.migrate."+name, "requires a control plane, but the package has none")
		}
	}
}

// checkViews checks that views refer to queries of the package, and graphs to fields of the view.
func (m *Manifest) checkViews(wrong func(field, format string, args ...any)) {
	for i, v := range m.Views {
		if _, ok := m.Queries[v.Query]; !ok {
			wrong(fmt.Sprintf("views[%d].query", i), "%q is not one of the package's queries; list it there", v.Query)
		}
		if v.Kind == "series" && len(v.Fields) == 0 {
			wrong(fmt.Sprintf("views[%d].fields", i), "is missing; name the numbers that the graph shows")
		}
	}
}

// sameReason returns two names with the same number, if any.
func sameReason(reasons map[string]int) (a, b string, number int) {
	seen := map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		n := reasons[name]
		if other, ok := seen[n]; ok {
			return other, name, n
		}
		seen[n] = name
	}
	return "", "", 0
}

// Object returns the file name of the compiled data plane for a hook.
func (m *Manifest) Object(hook string) string { return m.Name + "." + hook + ".o" }

func (m *Manifest) compileSchema() (*schema.Schema, error) {
	return schema.Compile(m.ConfigSchema, false)
}

// validateConfig checks the config of a module. Errors are *sdk.ConfigError, all of them joined.
func validateConfig(compiled *schema.Schema, config map[string]any) error {
	if config == nil {
		config = map[string]any{}
	}
	var all []error
	plain := any(config)
	if !schema.IsPlain(plain) { // Go code may give it []string
		var err error
		if plain, err = schema.Plain(config); err != nil {
			return &sdk.ConfigError{Field: "config", Reason: err.Error()}
		}
	}
	for _, e := range apierrors.Invalids(compiled.Validate(plain)) {
		all = append(all, &sdk.ConfigError{Field: cmp.Or(e.Field, "config"), Reason: e.Reason})
	}
	return errors.Join(all...)
}
