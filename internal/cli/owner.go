// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/url"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// writer is the owner as which a command changes resources.
type writer struct {
	owner        string
	force, prune bool
}

func (w *writer) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&w.owner, "owner", v1alpha1.OwnerUser, "owner of the resources")
	c.Flags().BoolVar(&w.force, "force", false, "also change resources of other owners")
}

func (w *writer) addPrune(c *cobra.Command) {
	c.Flags().BoolVar(&w.prune, "prune", false, "delete all other resources of the owner")
}

// query returns the parameters of the request.
func (w *writer) query() url.Values {
	q := url.Values{}
	if w.owner != v1alpha1.OwnerUser {
		q.Set("owner", w.owner)
	}
	if w.force {
		q.Set("force", "true")
	}
	if w.prune {
		q.Set("prune", "true")
	}
	return q
}
