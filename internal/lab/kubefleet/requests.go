// SPDX-License-Identifier: Apache-2.0

package kubefleet

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/internal/lab/kubeapi"
)

// ofKerb are the resources that nodes and the controller watch and write.
var ofKerb = []string{"clustermodules", "modules", "kerbnodes", "packagetrusts", "modulerevisions", "namespaces",
	"pods", "nodes", "events"}

// Requests counts the API server's requests from Kerb, without those for the Lease.
type Requests struct {
	All, Writes int
	by          map[string]int // by the metric's labels
}

// Since returns the increases since an earlier count.
func (r Requests) Since(before Requests) (out []string) {
	for line, n := range r.by {
		if more := n - before.by[line]; more > 0 {
			out = append(out, fmt.Sprint(more, " ", line))
		}
	}
	return out
}

// CountRequests reads the metrics of the server.
func CountRequests(server *kubeapi.Server) (Requests, error) {
	out := Requests{by: map[string]int{}}
	answer, err := server.Admin.Get(server.URL + "/metrics")
	if err != nil {
		return out, err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		ours := slices.ContainsFunc(ofKerb, func(r string) bool { return strings.Contains(line, `resource="`+r+`"`) })
		if !strings.HasPrefix(line, "apiserver_request_total{") || !ours {
			continue
		}
		name, value, _ := strings.Cut(line, "} ")
		count, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return out, fmt.Errorf("metrics of the API server: %w", err)
		}
		out.All, out.by[name] = out.All+int(count), int(count)
		if !strings.Contains(line, `verb="GET"`) && !strings.Contains(line, `verb="LIST"`) &&
			!strings.Contains(line, `verb="WATCH"`) {
			out.Writes += int(count)
		}
	}
	return out, lines.Err()
}
