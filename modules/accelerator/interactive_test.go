// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk"
)

// segmentsTo returns the number of TCP segments that a socket has received.
func segmentsTo(t testing.TB, fd int) uint32 {
	t.Helper()
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	check(t, err)
	return info.Segs_in
}

// acknowledgements sends messages, each after the previous one was read, and returns the number of segments in the
// reverse direction.
func (c *conn) acknowledgements(from, to, messages int) uint32 {
	c.t.Helper()
	before := segmentsTo(c.t, from)
	for range messages {
		c.send(from, noise(30))
		c.receive(to, 30)
	}
	return segmentsTo(c.t, from) - before
}

// A connection may take some turns and then send in one direction, as MQTT with QoS 0 does. The receiver's TCP must
// have seen the turns: without an answer soon after a request, it acknowledges each message instead of every second
// one, and an acknowledgement costs about as much as a message.
func TestInteractive(t *testing.T) {
	p := accelerate(t, configOf(t, "").entry(sdk.Kernel{}))
	const messages = 100
	for name, turns := range map[string]int{"client": 1, "server": 2} { // MQTT: CONNECT; CONNECT and SUBSCRIBE
		t.Run(name, func(t *testing.T) {
			var least uint32 = 2 * messages
			for range 10 { // TCP acknowledges more if a program is not scheduled for 40 ms
				c := p.connect(t)
				for range turns {
					c.turn(30)
				}
				from, to := c.client, c.server
				if name == "server" {
					from, to = to, from
				}
				c.acknowledgements(from, to, messages) // it leaves
				wait.Until(t, "the sockets are out of the map", func() bool { return p.enrolled() == 0 })
				if least = min(least, c.acknowledgements(from, to, messages)); least < messages*3/4 {
					return
				}
				c.close()
			}
			t.Errorf("%d acknowledgements of %d messages", least, messages)
		})
	}
}
