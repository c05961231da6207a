// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/serve"
)

// audit logs a change: the client, the resources and the outcome.
func (j journal) audit(ctx context.Context, result v1.ApplyResult, err error) {
	if result.DryRun {
		return
	}
	by := slog.Any("by", serve.Caller(ctx, j.ProcessName))
	logged := false
	for _, c := range result.Changes {
		switch {
		case c.Action == "unchanged":
			continue
		case err != nil:
			why := refusalOf(c, err)
			j.Log.Warn("change refused", by, "action", c.Action, "kind", c.Kind, "name", c.Name, "error", why)
		default:
			j.Log.Info("change", by, "action", c.Action, "kind", c.Kind, "name", c.Name, "outcome", "done")
		}
		logged = true
	}
	if err != nil && !logged {
		j.Log.Warn("change refused", by, "error", err)
	}
}

// refusalOf returns what an error that refuses a request says of one of its resources.
func refusalOf(c v1.Change, err error) error {
	all := apierrors.Invalids(err)
	if len(all) == 0 {
		return err
	}
	var own []error
	for _, one := range all {
		if one.Resource == c.Kind+" "+c.Name || one.Resource == "" {
			own = append(own, one)
		}
	}
	return cmp.Or(errors.Join(own...), errOthersRefused)
}

var errOthersRefused = errors.New("other resources of the request were refused")
