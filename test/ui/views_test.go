// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"net/netip"
	"os"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// The views of modules' own routes show the figures of deadlines, listeners and models.
func TestViewsOfModules(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	web, db := n.Host("web"), n.Host("db")
	document, err := os.ReadFile("../../modules/classifier/models/flow-floods.json")
	if err != nil {
		t.Fatal(err)
	}
	responder := node.Module("answers", "responder", "app=db", map[string]any{"listeners": []any{
		map[string]any{"app": "echo", "name": "pings", "port": 7000, "sourceRate": 0}}})
	intercept := node.Module("control", "intercept", "app=db", map[string]any{"classes": []any{map[string]any{
		"name": "fast", "match": map[string]any{"protocol": "udp", "ports": []int{7001}}, "action": "copy",
		"deadline": "100us"}}})
	classifier := node.Module("judge", "classifier", "app=db", map[string]any{"extractor": "flow", "model": "floods"})
	responder.Spec.Budget, intercept.Spec.Budget, classifier.Spec.Budget = slow, slow, slow
	n.Apply(node.Service(web, "app=web"), node.Service(db, "app=db"), responder, intercept, classifier,
		v1.Model{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModel},
			Metadata: v1.ObjectMeta{Name: "floods"}, Spec: v1.ModelSpec{Document: string(document)}})
	traffic(t, web, netip.AddrPortFrom(db.Addr4(), 7000))
	traffic(t, web, netip.AddrPortFrom(db.Addr4(), 7001))
	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	p := &page{browser: b, t: t}
	b.shows("#verdict", "3 modules")
	b.shows(".live", "live")
	p.view("deadlines")
	b.shows("main", "Listeners", "pings", "answers", "Classes", "fast", "max")
	p.view("models")
	b.shows("main", "floods", "judge", "Decisions")
	p.view("services/db")
	b.shows(".pipeline", "answers", "reply", "control", "judge")
	if said := b.logEntries(); len(said) > 0 {
		t.Errorf("the browser complains: %v", said)
	}
}
