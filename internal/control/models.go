// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/sdk"
)

// grantModels sends all models, and their changes, to a control plane.
func grantModels(o *Options, module string) any {
	return modelGrant{o.Models.Subscribe(module)}
}

type modelGrant struct{ *models.Subscription }

func (g modelGrant) follow(ctx context.Context, p *Supervisor, r *run) {
	feed(ctx, p, r, "models", g.Subscription)
}

func (g modelGrant) condition() sdk.Condition {
	return conditionOf("Models", "Synced", "SyncFailed", g.Err())
}
