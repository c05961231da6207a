// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"maps"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/models"
)

// Model is the kind of trained models.
var Model = &Definition[v1alpha1.Model]{
	Name:     v1alpha1.KindModel,
	Short:    "Trained models that modules run on packets",
	ListNote: "without their documents",
	Complete: func(m *v1alpha1.Model, _ map[string]any) error { return models.Check(*m) },
	CheckAll: func(next State, asked, changed []v1alpha1.Model) (warnings []string, err error) {
		for _, m := range asked {
			warnings = append(warnings, models.Warnings(m, maps.Collect(all[v1alpha1.Module](next, v1alpha1.KindModule)))...)
		}
		return warnings, models.CheckTogether(maps.Collect(all[v1alpha1.Model](next, v1alpha1.KindModel)), changed)
	},
	// A document may have megabytes.
	Summarize: func(m *v1alpha1.Model) any {
		return map[string]any{"version": m.Spec.DocumentVersion(), "document": m.Spec.Digest()}
	},
	Shorten: func(m *v1alpha1.Model) { m.Spec.Document = "" },
	Keep: func(old, next *v1alpha1.Model) (v1alpha1.ModelVersion, string, bool) {
		v := v1alpha1.ModelVersion{Generation: old.Metadata.Generation, Version: old.Spec.DocumentVersion(),
			Digest: old.Spec.Digest()}
		return v, old.Spec.Document, old.Spec.Document != next.Spec.Document
	},
	SetDocument: func(m *v1alpha1.Model, document string) { m.Spec.Document = document },
	Columns: []Column[v1alpha1.Model]{
		{Header: "VERSION", Cell: func(m *v1alpha1.Model) any { return Status(m.Status).Summary.Version }},
		{Header: "KIND", Cell: func(m *v1alpha1.Model) any { return Status(m.Status).Summary.Model }},
		{Header: "SHAPE", Cell: func(m *v1alpha1.Model) any { return Status(m.Status).Summary.Shape }},
		{Header: "EXTRACTOR", Cell: func(m *v1alpha1.Model) any { return Status(m.Status).Summary.Extractor }},
		{Header: "READY", Cell: func(m *v1alpha1.Model) any { return Ready(Status(m.Status).Conditions) }},
		{Header: "MODULES", Cell: func(m *v1alpha1.Model) any { return strings.Join(Status(m.Status).Modules, ",") }},
	},
}
