// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/model"
)

// roles of models: model.Live decides, model.Shadow is only compared.
var roles = [...]model.Role{model.Live, model.Shadow}

var roleNames = [...]string{"live", "shadow"}

// running is what is known of one map set.
type running struct {
	config *config
	live   sdk.Live
	slots  *model.Slots
	fuse   *sharedFuse
	stream sdk.Stream[*Verdict]
	words  vocabulary

	mu        sync.Mutex
	loaded    [len(roles)]*loaded
	refused   [len(roles)]error // why the model that the config names does not run
	fresh     map[string]bool   // names received since the last Reset; nil outside a full update
	synced    bool              // a full update has been received
	evaluator evaluator
	troubles  map[string]error // of background work
}

// loaded is a model that runs. Of one that the data plane runs the numbers are not kept.
type loaded struct {
	Name       string    `json:"name"`
	Generation int64     `json:"generation"`
	Version    uint32    `json:"version"`
	Kind       string    `json:"kind"`
	Features   []string  `json:"features"`
	Classes    []string  `json:"classes"`
	Since      time.Time `json:"since"`
	Note       string    `json:"note,omitempty"`

	harmless uint64          // in user mode
	packed   *model.Packed   // the same
	doc      *model.Document // the same, of a model that is too large to be packed
	columns  []int           // of doc's features among those of the extractor
}

func newPlane(c *config, live sdk.Live) (*running, error) {
	models, err := live.Maps.Get(mapModels)
	if err != nil {
		return nil, err
	}
	active, err := live.Maps.Get(mapActive)
	if err != nil {
		return nil, err
	}
	shared, err := shareFuse(live.Maps)
	if err != nil {
		return nil, err
	}
	return &running{config: c, live: live, slots: model.NewSlots(models, active), fuse: shared,
		troubles: map[string]error{}, evaluator: newEvaluator()}, nil
}

// wants is the name of the model that the config gives a role, empty for none.
func (c *config) wants(role model.Role) string {
	if role == model.Shadow {
		return c.Shadow
	}
	return c.Model
}

// Models implements sdk.ModelUser.
func (w *running) Models(update sdk.ModelUpdate) (sdk.ModelAnswer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.update(&update)
}

// update applies a part of a model update. A full transfer begins with Reset and ends with Complete: models that it did
// not name are dropped only then, so that a broken transfer removes nothing.
func (w *running) update(u *sdk.ModelUpdate) (answer sdk.ModelAnswer, err error) {
	if u.Reset {
		w.fresh = map[string]bool{}
	}
	for _, m := range u.Put {
		if w.fresh != nil {
			w.fresh[m.Name] = true
		}
		if err := w.put(m, &answer); err != nil {
			return answer, err
		}
	}
	for _, name := range u.Remove {
		if err := w.drop(func(wanted string) bool { return wanted == name }); err != nil {
			return answer, err
		}
	}
	if !u.Complete {
		return answer, nil
	}
	fresh := w.fresh
	w.fresh, w.synced = nil, true
	return answer, w.drop(func(wanted string) bool { return !fresh[wanted] })
}

// put loads a model in the roles that the config gives it. The answer reports models that cannot be used.
func (w *running) put(m sdk.Model, answer *sdk.ModelAnswer) error {
	for i, role := range roles {
		if w.config.wants(role) != m.Name {
			continue
		}
		next, refusal, err := w.load(role, m)
		if err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		w.refused[i] = refusal
		if refusal != nil {
			slog.Warn("classifier: model refused", "module", w.live.Module, "model", m.Name, "error", refusal)
			if answer.Refused == nil {
				answer.Refused = map[string]string{}
			}
			answer.Refused[m.Name] = refusal.Error()
			continue
		}
		w.loaded[i] = next
		w.words.learn(next)
		answer.Using = append(answer.Using, m.Name)
		slog.Info("classifier: model loaded", "module", w.live.Module, "role", roleNames[role], "model", m.Name,
			"version", next.Version)
	}
	return nil
}

// load makes a model run. refusal is why that one cannot; what ran before runs on then.
func (w *running) load(role model.Role, m sdk.Model) (next *loaded, refusal, err error) {
	doc, refusal := model.Parse(m.Document)
	if refusal != nil {
		return nil, refusal, nil
	}
	fits, refusal := w.config.fit(doc)
	if refusal != nil {
		return nil, refusal, nil
	}
	next = &loaded{Name: m.Name, Generation: m.Generation, Version: doc.Version, Kind: doc.Kind, Features: doc.Features,
		Classes: doc.Classes,
		Since:   time.Now().UTC().Truncate(time.Millisecond), Note: w.config.mismatch(doc), columns: fits.columns}
	if w.config.inUser() {
		if next.harmless, next.packed = fits.harmless, fits.packed; fits.packed == nil {
			next.doc = doc
		}
		return next, nil, w.slots.Unload(role)
	}
	if err := w.live.Maps.Put(mapHarmless, uint32(role), fits.harmless); err != nil {
		return nil, nil, err
	}
	return next, nil, w.slots.Load(role, fits.packed)
}

// fitting is how a config has a model run.
type fitting struct {
	columns  []int // of the model's features among those of the extractor
	harmless uint64
	packed   *model.Packed // nil: it is too large, and runs in floating point in the control plane
}

// fit finds why a config cannot have a model run.
func (c *config) fit(doc *model.Document) (f fitting, err error) {
	if doc.Extractor != c.Extractor {
		return f, fmt.Errorf("it is made for the extractor %s, and this module's is %s", doc.Extractor, c.Extractor)
	}
	names := Features[doc.Extractor]
	if f.columns, err = doc.Columns(names); err != nil {
		return f, err
	}
	if f.harmless, err = c.harmless(doc.Classes); err != nil {
		return f, err
	}
	if f.packed, err = doc.Pack(names); err != nil && !c.inUser() {
		return f, fmt.Errorf("%w (evaluate.where: user runs it in the control plane)", err)
	}
	return f, nil
}

// CheckModel implements model.User.
func (control) CheckModel(settings map[string]any, name string, doc *model.Document) (referenced bool, err error) {
	raw, err := json.Marshal(settings)
	if err != nil {
		return false, err
	}
	c, err := parseConfig(raw)
	if err != nil || c.Model != name && c.Shadow != name { // a config that is wrong is not the model's fault
		return false, nil
	}
	_, err = c.fit(doc)
	return true, err
}

// mismatch reports what makes a model's results doubtful though it runs.
func (c *config) mismatch(doc *model.Document) string {
	trained, err := time.ParseDuration(doc.Window)
	if err != nil || trained == time.Duration(c.Window) {
		return ""
	}
	return fmt.Sprintf("trained with windows of %s, and this module's have %s", doc.Window, time.Duration(c.Window))
}

// drop takes the models away whose names are meant, and those of roles that the config does not give.
func (w *running) drop(meant func(wanted string) bool) error {
	for i, role := range roles {
		wanted := w.config.wants(role)
		if wanted != "" && !meant(wanted) {
			continue
		}
		if err := w.slots.Unload(role); err != nil {
			return err
		}
		w.loaded[i], w.refused[i] = nil, nil
		if wanted != "" {
			w.refused[i] = fmt.Errorf("no model %s: load it with kerb model load", wanted)
		}
	}
	return nil
}

// modelCondition reports whether the models run that the config names.
func (w *running) modelCondition() sdk.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := sdk.Condition{Type: "Model", Status: "True", Reason: "Running"}
	switch err := errors.Join(w.refused[:]...); {
	case err != nil:
		c.Status, c.Reason, c.Message = "False", "NotRunning", err.Error()
		if w.loaded[model.Live] != nil {
			c.Reason = "PreviousVersionRunning"
		}
	case w.config.Model == "":
		c.Status, c.Reason, c.Message = "False", "NoModelConfigured", "config.model is not set: packets are counted but "+
			"not classified"
	case !w.synced:
		c.Status, c.Reason = "Unknown", "Starting"
	case w.loaded[model.Live] != nil:
		l := w.loaded[model.Live]
		c.Message = fmt.Sprintf("%s, version %d", l.Name, l.Version)
		if l.Note != "" {
			c.Reason, c.Message = "WindowMismatch", c.Message+": "+l.Note
		}
	}
	return c
}
