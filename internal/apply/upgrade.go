// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Upgrade is a module whose new version processes packets while maps and control plane of the old version still exist.
type Upgrade struct {
	Module       string
	From, To     string // versions
	Limit        time.Duration
	Start        func() error // starts the control plane of the new version
	AwaitHealthy func(context.Context) error
}

// AwaitUpgrades waits for the new version of each module to become healthy on live traffic. After an error the change
// is undone.
func AwaitUpgrades(ctx context.Context, upgrades []Upgrade) error {
	var all errgroup.Group
	for _, u := range upgrades {
		all.Go(func() error { return u.await(ctx) })
	}
	return all.Wait()
}

// await starts the upgrade and waits at most Limit for the module to become healthy. Otherwise it returns a Conflict
// that names both versions, and the caller undoes the change.
func (u Upgrade) await(ctx context.Context) error {
	if err := u.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, u.Limit)
	defer cancel()
	if err := u.AwaitHealthy(ctx); err != nil {
		return &apierrors.Conflict{Reason: fmt.Sprintf("%s %s: version %s was rolled back to %s, as it was not healthy "+
			"within %v: %v",
			v1.KindModule, u.Module, u.To, u.From, u.Limit, err)}
	}
	return nil
}
