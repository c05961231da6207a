// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

const everything = `{"classes": [{"name": "all", "direction": "both"}]}`

// answering has every application of the responder.
const answering = `{"classes": [{"name": "all", "direction": "both"},
	{"name": "echo", "action": "answer", "match": {"protocol": "udp", "ports": [7000]}, "answer": {"app": "echo"}},
	{"name": "road", "action": "answer", "match": {"protocol": "udp", "ports": [8080]}, "answer": {"app": "speedlimit"}},
	{"name": "coap", "action": "answer", "match": {"protocol": "udp", "ports": [5683]}, "answer": {"app": "coap", "resources": [{"path": "/a"}]}},
	{"name": "loop", "action": "steal", "deadline": "1ms", "match": {"protocol": "udp", "ports": [5005]},
		"fallback": {"app": "linear", "reply": "00", "sourceRate": 0}}]}`

// The verifier's work bounds how many modules fit into one program with this one (1,000,000 in all).
const maxVerified = 110000

func TestVerifies(t *testing.T) {
	for _, hook := range []chain.Hook{chain.XDP, chain.TC} {
		for _, c := range []struct {
			name      string
			direction chain.Direction
			config    string
		}{
			{"ingress", chain.Ingress, everything}, {"egress", chain.Egress, everything},
			{"answers", chain.Ingress, answering}, {"forwards", chain.Ingress, forwards("", `"interface": "eth1"`)},
			{"labels", chain.Egress, `{"classes": [{"name": "all", "direction": "both", "match": {"label": 7}}]}`},
		} {
			t.Run(string(hook)+" "+c.name, func(t *testing.T) { verifies(t, load(t, hook, c.direction, c.config)) })
		}
	}
}

func verifies(t *testing.T, k *kernel) {
	sdktest.CheckVerified(t, k.prog, maxVerified)
}

// The Go structures have the layout of the compiled data plane.
func TestLayouts(t *testing.T) {
	p := pkgstest.Package(t)
	spec, err := p.Spec(string(chain.TC))
	if err != nil {
		t.Fatal(err)
	}
	for name, mirror := range map[string]any{
		"icpt_range": rangeEntry{}, "icpt_prefix": prefixEntry{}, "icpt_bytes": bytesEntry{}, "icpt_class": classEntry{},
		"icpt_table": tableEntry{}, "icpt_target": targetEntry{},
		"icpt_flow": flowEntry{}, "icpt_counts": countsEntry{}, "icpt_record": Record{}, "icpt_late": late{},
		"icpt_state":   state{},
		"icpt_control": control64{}, "icpt_sockets": socketsEntry{},
	} {
		sdktest.Layout(t, spec.Types, name, mirror)
	}
}
