// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	otellog "go.opentelemetry.io/otel/log"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Attributes of a change have the API's values, the time that it took in nanoseconds.
func TestRecordOfChange(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	r := recordOfChange(v1.ChangeRecord{Number: 7, Time: at, By: "uid 0", Owner: "kubernetes", Outcome: v1.OutcomeRefused,
		Took: 2_500_000, Error: "no package", Repeated: 3, Changes: []v1.Change{
			{Action: "create", Kind: v1.KindModule, Name: "fw"}, {Action: "delete", Kind: v1.KindService, Name: "web"}}})
	got := map[string]any{}
	r.WalkAttributes(func(a attribute.KeyValue) bool {
		got[string(a.Key)] = a.Value.AsInterface()
		return true
	})
	want := map[string]any{"kerb.change.number": int64(7), "kerb.change.by": "uid 0", "kerb.change.owner": "kubernetes",
		"kerb.change.outcome": "refused", "kerb.change.took_nanoseconds": int64(2_500_000), "kerb.change.repeated": int64(3),
		"kerb.resources": []string{"Module/fw", "Service/web"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attributes (-want, +got):\n%s", diff)
	}
	if r.EventName() != "kerb.change" || !r.Timestamp().Equal(at) || r.Severity() != otellog.SeverityWarn ||
		r.Body().AsString() != "refused: no package" {
		t.Errorf("%s at %v, %v: %v", r.EventName(), r.Timestamp(), r.Severity(), r.Body())
	}
}
