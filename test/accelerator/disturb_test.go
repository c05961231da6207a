// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// disturbances are operations and failures that affect a working module. Each leaves it working.
var disturbances = []struct {
	what string
	do   func(*node)
}{
	{"kill -9 of the agent", func(n *node) {
		n.Kill()
		time.Sleep(100 * time.Millisecond) // conversations without an agent
		n.Start()
	}},
	{"another mode", func(n *node) {
		for _, mode := range []string{"redirect-all", "off", "adaptive"} {
			config := allowed()
			config["mode"] = mode
			n.Apply(accelerator(config))
			time.Sleep(200 * time.Millisecond) // conversations in this mode
		}
	}},
	{"removal of the module", func(n *node) {
		n.Must(http.MethodDelete, "/v1/modules/fast", nil, nil)
		n.Eventually("the module is gone", func() bool { return n.entries("members") < 0 })
		time.Sleep(200 * time.Millisecond) // conversations without the module
		n.Apply(accelerator(allowed()))
	}},
	{"removal of a service", func(n *node) {
		n.Must(http.MethodDelete, "/v1/services/a", nil, nil)
		n.Eventually("one service is accelerated", func() bool { return n.entries("members") == 1 })
		n.Apply(service(n.a))
	}},
	{"purge", func(n *node) {
		n.Kill()
		n.Purge()
		if _, err := os.Stat(n.BPF); !os.IsNotExist(err) {
			n.T.Errorf("pins are left: %v", err)
		}
		time.Sleep(200 * time.Millisecond) // conversations without Kerb
		n.Start()
		n.Apply(service(n.a), service(n.b), accelerator(allowed()))
	}},
}

// The agent is killed, and the module changed, removed and purged during conversations. None of them is affected, and
// later ones are accelerated again.
func TestDisturbed(t *testing.T) {
	if plain {
		t.Skip("there is nothing to disturb")
	}
	n := newAcceleratedNode(t, allowed())
	s := newSoak(n, blocking)
	end := time.Now().Add(soakTime(t, 0))
	for done := 0; done < len(disturbances) || time.Now().Before(end); done++ {
		d := disturbances[done%len(disturbances)]
		begin := time.Now()
		d.do(n)
		n.settled()
		before := n.pairReport().Bytes
		wait.Until(t, "connections are accelerated after "+d.what, func() bool { return n.pairReport().Bytes > before },
			func() any { return n.pairReport() }, func() any { return n.executables() })
		t.Logf("%s: %v", d.what, time.Since(begin).Round(time.Millisecond))
	}
	s.finish()
	n.empty()
}
