// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"net/http"
)

// packetCount is the report of Oakestra's packet counter for an interface. Directions are the service's.
type packetCount struct {
	Ingress uint64 `json:"ingress"`
	Egress  uint64 `json:"egress"`
}

// getCounts returns packets by interface, summed over all protocols.
func (l *Listener) getCounts(w http.ResponseWriter, r *http.Request, m module) {
	if m.Name != "packetCounter" {
		l.forwardToModule(w, r, m)
		return
	}
	counts, err := l.counts(r.Context(), resourceOf(m.ID))
	if err != nil {
		fail(w, "counts", err)
		return
	}
	writeJSON(w, counts)
}

func (l *Listener) counts(ctx context.Context, name string) (map[string]packetCount, error) {
	resource, err := l.agent.module(ctx, name)
	if err != nil {
		return nil, err
	}
	out := map[string]packetCount{}
	if resource.Status != nil {
		for _, i := range resource.Status.Attachments {
			out[i.Interface] = packetCount{} // also an interface without packets
		}
	}
	var report struct {
		Counts []struct {
			Interface, Direction string
			Packets              uint64
		}
	}
	if err := l.agent.ask(ctx, name, "/counts", &report); err != nil {
		return nil, err
	}
	for _, c := range report.Counts {
		sum := out[c.Interface]
		if c.Direction == "ingress" {
			sum.Ingress += c.Packets
		} else {
			sum.Egress += c.Packets
		}
		out[c.Interface] = sum
	}
	return out, nil
}
