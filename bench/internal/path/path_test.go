// SPDX-License-Identifier: Apache-2.0

package path

import (
	"os"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Streams that start while the server is busy wait for the other one's end.
func TestBusyServer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.New("kbbsy")
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	hosts, err := lab.Hosts(2, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	group, err := NewGroup("kbbsy")
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	p := &Path{Client: hosts[0], Server: hosts[1], Address: hosts[1].Addr4(), Group: group}
	if err := p.Open(); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	other := make(chan error)
	go func() {
		_, err := p.run("-t", "2", "-b", "1M")
		other <- err
	}()
	for range 3 { // some overlap with the other
		if _, err := p.run("-t", "1", "-b", "1M"); err != nil {
			t.Error(err)
		}
	}
	if err := <-other; err != nil {
		t.Error(err)
	}
}
