// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
	"github.com/kerb-edge/kerb/internal/promtext"
)

// Before the first successful synchronisation, a node reports the start of the program as its time, so that
// KerbKubeNodeBehind fires for it, too.
func TestSyncNeverSucceeded(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	const text = `{clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {}}],
  contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	api, err := watch.Load(config)
	if err != nil {
		t.Fatal(err)
	}
	var out promtext.Set
	new(roundStats).collect(&out, newState("n1"), api, &events.Recorder{})
	got, err := out.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^kerb_kube_last_sync_timestamp_seconds [1-9]`).Match(got) {
		t.Errorf("%s", got)
	}
}
