// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
)

// Check finds what is wrong with a model, beyond its schema. Errors are *fault.Invalid.
func Check(m v1.Model) error {
	if _, err := Summarize(m.Spec); err != nil {
		return &fault.Invalid{Resource: v1.KindModel + " " + m.Metadata.Name, Field: "spec.document", Reason: err.Error()}
	}
	return nil
}

// Summarize reads a document.
func Summarize(spec v1.ModelSpec) (v1.ModelSummary, error) {
	sum := sha256.Sum256([]byte(spec.Document))
	out := v1.ModelSummary{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: len(spec.Document)}
	var head struct {
		Format, Name, Version, Kind, Extractor string
		Features, Classes                      []string
	}
	if err := json.NewDecoder(bytes.NewReader([]byte(spec.Document))).Decode(&head); err != nil {
		return out, fmt.Errorf("not JSON: %w", err)
	}
	out.Name, out.Version, out.Model, out.Extractor = head.Name, head.Version, head.Kind, head.Extractor
	out.Features, out.Classes = head.Features, head.Classes
	return out, nil
}
