// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

const revisionsPath = "/apis/kerb.dev/v1alpha1/modulerevisions"

// history returns the lines of kubectl kerb rollout history without the heading.
func (b *bed) history(name string) []string {
	b.T.Helper()
	out, code := b.kubectl("rollout", "history", name)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || !strings.HasPrefix(lines[0], "REVISION") {
		b.T.Fatal(out)
	}
	return lines[1:]
}

// Each spec of a ClusterModule has a revision, of which ten are kept. Revisions are immutable, are deleted with the
// ClusterModule, and restore an earlier spec. Nothing is written while nothing changes.
func TestRevisions(t *testing.T) {
	b := newBed(t)
	b.controller(b.controllerConfig())
	const name = "guard"
	config := func(port int) string {
		return fmt.Sprintf("package: {name: firewall}, config: {rules: [{direction: ingress, action: allow, protocol: tcp, "+
			"dstPort: %d}]}", port)
	}
	present := func(lines []string) string {
		for _, l := range lines {
			if strings.HasSuffix(strings.TrimSpace(l), "present") {
				return strings.Fields(l)[0]
			}
		}
		return ""
	}
	port := func() (out any) {
		var m api.ClusterModule
		b.api.Must(http.MethodGet, modulesPath+name, nil, &m)
		rules, _ := m.Spec.Config["rules"].([]any)
		return rules[0].(map[string]any)["dstPort"]
	}
	for i := 1; i <= api.MaxRevisions+2; i++ {
		b.module(name, "{"+config(i)+", attach: {pods: {}}}")
		b.Eventually(fmt.Sprint("revision of spec ", i), func() bool {
			lines := b.history(name)
			return len(lines) == min(i, api.MaxRevisions) && present(lines[:1]) != ""
		})
	}
	before := strings.Fields(b.history(name)[1])[0]
	newest := func(revision string) {
		t.Helper()
		b.Eventually(revision+" is present, and has the highest number", func() bool {
			return present(b.history(name)[:1]) == revision
		})
	}
	if out, code := b.kubectl("rollout", "undo", name); code != 0 ||
		out != "clustermodule guard: undo to revision "+before+"\n" || port() != float64(api.MaxRevisions+1) {
		t.Errorf("undo: %d %s, port %v", code, out, port())
	}
	newest(before)
	b.module(name, "{"+config(20)+", attach: {pods: {}}}")
	b.Eventually("a revision of another spec", func() bool { return present(b.history(name)[:1]) != "" })
	if out, code := b.kubectl("rollout", "undo", name); code != 0 || port() != float64(api.MaxRevisions+1) {
		t.Errorf("undo leads back to the spec that was undone: %d %s, port %v", code, out, port())
	}
	lines := b.history(name)
	oldest := strings.Fields(lines[len(lines)-1])[0]
	if out, code := b.kubectl("rollout", "undo", name, "--to-revision", oldest); code != 0 || port() != float64(4) {
		t.Errorf("undo to the oldest: %d %s, port %v", code, out, port())
	}
	newest(oldest)
	if out, code := b.kubectl("rollout", "undo", name, "--to-revision", "guard-none"); code != 1 ||
		!strings.Contains(out, "has no revision guard-none: kubectl kerb rollout history guard") {
		t.Errorf("undo to a missing revision: %d %s", code, out)
	}
	if out, code := b.kubectl("rollout", "history", name, "--revision", oldest); code != 0 ||
		!strings.Contains(out, `"dstPort":4`) {
		t.Errorf("history of one: %d %s", code, out)
	}
	b.module(name, "{"+config(30)+", attach: {pods: {}}, rollout: {waves: [100], nodes: [n7], previous: {"+config(4)+"}}}")
	if out, code := b.kubectl("rollout", "undo", name, "--to-revision", before); code != 1 ||
		!strings.Contains(out, "is being rolled out") || !strings.Contains(out, oldest) || port() != float64(30) {
		t.Errorf("undo in a rollout: %d %s, port %v", code, out, port())
	}
	b.Eventually("the revision of the rollout", func() bool { return present(b.history(name)[:1]) != "" })
	if out, code := b.kubectl("rollout", "undo", name, "--to-revision", oldest); code != 0 || port() != float64(4) {
		t.Errorf("undo to the previous version: %d %s, port %v", code, out, port())
	}
	newest(oldest)
	var m api.ClusterModule
	b.api.Must(http.MethodGet, modulesPath+name, nil, &m)
	if r := m.Spec.Rollout; r == nil || len(r.Waves) != 1 {
		t.Errorf("the rollout was removed: %+v", m.Spec)
	}

	err := b.api.Apply(revisionsPath+"/"+before, "apiVersion: kerb.dev/v1alpha1\nkind: ModuleRevision\nmetadata: {name: "+
		before+"}\nspec: {module: guard, data: '{}'}\n")
	if err == nil || !strings.Contains(err.Error(), "a revision does not change: apply the ClusterModule") {
		t.Errorf("a revision was changed: %v", err)
	}
	err = b.api.Apply(revisionsPath+"/other", "apiVersion: kerb.dev/v1alpha1\nkind: ModuleRevision\n"+
		"metadata: {name: other}\nspec: {module: guard, data: '{}'}\n")
	if err == nil || !strings.Contains(err.Error(), "as MODULE-HASH") {
		t.Errorf("a revision with another name: %v", err)
	}
	var one struct {
		Metadata struct {
			OwnerReferences []struct{ Kind, Name, UID string }
		}
	}
	b.api.Must(http.MethodGet, revisionsPath+"/"+before, nil, &one)
	if o := one.Metadata.OwnerReferences; len(o) != 1 || o[0].Kind != "ClusterModule" || o[0].Name != name ||
		o[0].UID != m.Metadata.UID {
		t.Errorf("owners are %+v", o)
	}

	version := func() string {
		var all struct {
			Items []struct {
				Metadata struct{ Name, ResourceVersion string }
			}
		}
		b.api.Must(http.MethodGet, revisionsPath, nil, &all)
		return fmt.Sprint(all.Items)
	}
	was := version()
	time.Sleep(5 * time.Second) // two rounds of the controller: nothing must happen
	if now := version(); now != was {
		t.Errorf("revisions were written: %s, before %s", now, was)
	}
	b.api.Must(http.MethodDelete, modulesPath+name, nil, nil) // no garbage collector runs here
	b.module(name, counter("app: web"))
	b.Eventually("revisions of the one that was deleted are deleted", func() bool {
		lines := b.history(name)
		return len(lines) == 1 && present(lines) != "" && strings.Count(version(), "guard-") == 1
	})
}
