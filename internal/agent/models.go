// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
)

// Models lists the models, without their documents.
func (a *Agent) Models(context.Context) ([]v1.Model, error) {
	desired := a.desiredModels()
	var out []v1.Model
	for _, name := range a.models.Names() {
		if m, ok := desired[name]; ok {
			m.Spec.Document = ""
			m.Status = a.modelStatus(m)
			out = append(out, m)
		}
	}
	return out, nil
}

// Model returns one.
func (a *Agent) Model(_ context.Context, name string) (v1.Model, error) {
	m, ok := a.desiredModels()[name]
	if !ok {
		return m, &fault.NotFound{Kind: v1.KindModel, Name: name}
	}
	m.Status = a.modelStatus(m)
	var err error
	m.Status.Versions, err = a.store.ModelVersions(name)
	return m, err
}

func (a *Agent) modelStatus(m v1.Model) *v1.ModelStatus {
	s := a.models.Status(m.Metadata.Name)
	if s == nil { // it is just coming
		return &v1.ModelStatus{}
	}
	s.Conditions = a.record(v1.KindModel, m.Metadata, s.Conditions)
	return s
}

// ModelVersion returns one as it was in an earlier generation.
func (a *Agent) ModelVersion(_ context.Context, name string, generation int64) (v1.Model, error) {
	m, ok := a.desiredModels()[name]
	if !ok {
		return m, &fault.NotFound{Kind: v1.KindModel, Name: name}
	}
	if m.Metadata.Generation == generation {
		return m, nil
	}
	var err error
	m.Spec, err = a.store.ModelVersion(name, generation)
	m.Metadata.Generation = generation
	return m, err
}

func (a *Agent) desiredModels() map[string]v1.Model {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.desired.Models
}
