// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"os"
	"runtime/metrics"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/sdk"
)

type nothing struct{ sdk.Control }

func (nothing) Compile(json.RawMessage) (sdk.Compiled, error) { return nil, nil }

// A config that replaces another one leaves garbage, which is collected rarely.
func TestChangesOfHosted(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC is set")
	}
	percent := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := percent()
	memtrim.Start(burst)
	wait.Until(t, "the process is idle", func() bool { return percent() < before })
	idle := percent()
	c := &changing{Control: nothing{}}
	for range 2 {
		if _, err := c.Compile(nil); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "the process is busy", func() bool { return percent() > idle })
}
