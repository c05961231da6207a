// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// disturbances are what an operator, or bad luck, does to a module that works. Each leaves it working.
var disturbances = []struct {
	what string
	do   func(*node)
}{
	{"kill -9 of the agent", func(n *node) {
		n.kill()
		time.Sleep(100 * time.Millisecond)
		n.start()
	}},
	{"another mode", func(n *node) {
		for _, mode := range []string{"redirect-all", "off", "adaptive"} {
			n.apply(accelerator(map[string]any{"mode": mode}))
			time.Sleep(200 * time.Millisecond)
		}
	}},
	{"removal of the module", func(n *node) {
		n.must(http.MethodDelete, "/v1/modules/fast", nil, nil)
		n.eventually("the module is gone", func() bool { return n.entries("members") < 0 })
		time.Sleep(200 * time.Millisecond)
		n.apply(accelerator(nil))
	}},
	{"removal of a service", func(n *node) {
		n.must(http.MethodDelete, "/v1/services/a", nil, nil)
		n.eventually("one service is accelerated", func() bool { return n.entries("members") == 1 })
		n.apply(service(n.a))
	}},
	{"purge", func(n *node) {
		n.kill()
		n.purge()
		if _, err := os.Stat(filepath.Join(pins, filepath.Base(n.dir))); !os.IsNotExist(err) {
			n.t.Errorf("pins are left: %v", err)
		}
		time.Sleep(200 * time.Millisecond)
		n.start()
		n.apply(service(n.a), service(n.b), accelerator(nil))
	}},
}

// The agent is killed, the module changed, removed and purged in the middle of conversations. None of them notices.
func TestDisturbed(t *testing.T) {
	if plain {
		t.Skip("there is nothing to disturb")
	}
	n := newAcceleratedNode(t, nil)
	lasts := soakTime(t, 8*time.Second)
	s := newSoak(n, lasts)
	done := 0
	for end := time.Now().Add(lasts); time.Now().Before(end); done++ {
		d := disturbances[done%len(disturbances)]
		begin := time.Now()
		d.do(n)
		n.settled()
		t.Logf("%s: %v", d.what, time.Since(begin).Round(time.Millisecond))
		time.Sleep(300 * time.Millisecond)
	}
	if done < len(disturbances) {
		t.Errorf("time was enough for %d of %d disturbances", done, len(disturbances))
	}
	s.finish()
	n.empty()
}
