// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// packetCount is what Oakestra's packet counter tells of an interface. Directions are the service's.
type packetCount struct {
	Ingress uint64 `json:"ingress"`
	Egress  uint64 `json:"egress"`
}

// getCounts answers with packets by interface, of all protocols together.
func (l *Listener) getCounts(w http.ResponseWriter, r *http.Request, m module) {
	if m.Name != "packetCounter" {
		l.passOn(w, r, m)
		return
	}
	counts, err := l.counts(r, resourceOf(m.ID))
	if err != nil {
		fail(w, "counts", err)
		return
	}
	writeJSON(w, counts)
}

func (l *Listener) counts(r *http.Request, name string) (map[string]packetCount, error) {
	resource, err := l.agent.Module(r.Context(), name)
	if err != nil {
		return nil, err
	}
	out := map[string]packetCount{}
	if resource.Status != nil {
		for _, i := range resource.Status.Instances {
			out[i.Interface] = packetCount{} // one that has seen nothing is told, too
		}
	}
	var report struct {
		Counts []struct {
			Interface, Direction string
			Packets              uint64
		}
	}
	if err := l.ask(r, name, "/counts", &report); err != nil {
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

// ask gets JSON from a module's control plane.
func (l *Listener) ask(r *http.Request, name, path string, v any) error {
	inner, err := http.NewRequestWithContext(r.Context(), http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	var a answer
	if err := l.agent.ServeModule(&a, inner, name); err != nil {
		return err
	}
	if a.status != 0 && a.status != http.StatusOK {
		return fmt.Errorf("module %s answered %d: %s", name, a.status, bytes.TrimSpace(a.body.Bytes()))
	}
	return json.Unmarshal(a.body.Bytes(), v)
}

// answer keeps a response.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header {
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

func (a *answer) WriteHeader(status int)            { a.status = status }
func (a *answer) Write(p []byte) (n int, err error) { return a.body.Write(p) }
