// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/gobuild"
)

// TestSignAnswersClient has examples/speedlimit-client ask the sign of deploy/examples, which has no server here: the
// kernel answers, once the control plane has reported that the interface is virtual. Before, a request whose checksum
// is left to the interface passes to the server.
func TestSignAnswersClient(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	client := filepath.Join(t.TempDir(), "speedlimit-client")
	if err := gobuild.Build(client, "github.com/kerb-edge/kerb/examples/speedlimit-client"); err != nil {
		t.Fatal(err)
	}
	sign, err := filepath.Abs("../deploy/examples/speedlimit.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := execute(t, "set -eu -o pipefail\n"+private+`ip netns add cars
ip link add eth0 type veth peer name eth0 netns cars
ip addr add 192.0.2.1/24 dev eth0
ip -n cars addr add 192.0.2.2/24 dev eth0
ip link set eth0 up
ip -n cars link set eth0 up
kerb agent 2> agent.log &
until kerb status > /dev/null 2>&1; do sleep 0.1; done
kerb apply -f `+sign+`
until kerb module get sign -o json | tr -d ' \n' | grep '"type":"ControlPlane","status":"True"' > /dev/null; do sleep 0.1; done
ip netns exec cars `+client+` -timeout 10s
kerb module query sign state
`)
	for _, want := range []string{"120 km/h, after ", "answered=1", "left=1"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output has no %q:\n%s", want, out)
		}
	}
}
