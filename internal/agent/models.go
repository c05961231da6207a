// SPDX-License-Identifier: Apache-2.0

package agent

import (
	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

func (a *Agent) modelViews() func(string) resource.Object {
	return func(name string) resource.Object {
		m, ok := resource.Model.Get(a.present(), name)
		if !ok {
			return nil
		}
		m.Status = a.modelStatus(m)
		return &m
	}
}

func (a *Agent) modelStatus(m v1.Model) *v1.ModelStatus {
	s := a.models.Status(m.Metadata.Name)
	if s == nil { // it is just coming
		return &v1.ModelStatus{}
	}
	s.Conditions = a.now.Record(v1.KindModel, m.Metadata, s.Conditions)
	return s
}

func (a *Agent) modelsCommitted(c resource.Changes) {
	a.models.Apply(resource.Model.Of(c.Put), removed(c))
}

func (a *Agent) addVersions(o resource.Object) (err error) {
	m := o.(*v1.Model)
	m.Status.Versions, err = a.store.Versions(resource.Model, m.Metadata.Name)
	return err
}
