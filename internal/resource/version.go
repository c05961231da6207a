// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Values of Ref.ResourceVersion that are not versions.
const (
	Absent  = "0" // the resource must not exist
	Present = "*" // it must exist, in any version
)

// Version returns a resource's metadata.resourceVersion: its generation, and a digest of the operator's input, so that
// a resource that was deleted and created again has another one.
func Version(o Object) string {
	data, err := json.Marshal(map[string]any{"labels": o.Meta().Labels, "spec": o.Content()})
	if err != nil {
		return "" // of a resource that was received as JSON
	}
	sum := sha256.Sum256(data)
	return fmt.Sprintf("%d-%x", o.Meta().Generation, sum[:6])
}

// CheckUnchanged returns *apierrors.PreconditionFailed for the first reference whose version is not the one in s.
func (s State) CheckUnchanged(refs []Ref) error {
	for _, ref := range refs {
		now := Absent
		if o, ok := s[ref.Kind][ref.Name]; ok && ref.ResourceVersion != "" {
			now = Version(o)
		}
		if ref.ResourceVersion == "" || ref.ResourceVersion == now || ref.ResourceVersion == Present && now != Absent {
			continue
		}
		return &apierrors.PreconditionFailed{Resource: ref.Kind + " " + ref.Name,
			Reason: changeFrom(ref.ResourceVersion, now)}
	}
	return nil
}

func changeFrom(expected, now string) string {
	switch {
	case now == Absent:
		return "it no longer exists"
	case expected == Absent:
		return "it exists already, in version " + now
	}
	return fmt.Sprintf("it has been changed since: it is now version %s, not %s; read it again and repeat your change",
		now, expected)
}
