// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Changes returns records of changes.
func (v *Views) Changes(_ context.Context, r v1.ChangesRequest) ([]v1.ChangeRecord, error) {
	return v.ChangeLog.List(r), nil
}

// Change returns the record of one change.
func (v *Views) Change(_ context.Context, number int64) (v1.ChangeRecord, error) {
	return v.ChangeLog.Get(number)
}

// Events sends events.
func (v *Views) Events(ctx context.Context, r v1.EventsRequest, send func(v1.Event) error) error {
	return v.EventLog.Read(ctx, r, send)
}

// History sends samples.
func (v *Views) History(ctx context.Context, r v1.HistoryRequest, send func(v1.HistoryLine) error) error {
	return v.Samples.History(ctx, r, send)
}
