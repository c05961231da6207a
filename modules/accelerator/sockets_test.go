// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"testing"
)

func TestTurnsAreRedirected(t *testing.T) {
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	for _, size := range []int{1, 24, 4096, 65536, 200000} {
		before := p.redirects(c.client)
		for range 20 {
			c.turn(size)
		}
		if p.redirects(c.client) < before+20 {
			t.Errorf("only %d of 20 messages of %d bytes were redirected", p.redirects(c.client)-before, size)
		}
	}
	c.close()
	p.empty(t)
	if n := p.counts(); n.Offered != 1 || n.Paired != 1 || n.Accelerated != 1 || n.Messages < 200 {
		t.Errorf("%+v", n)
	}
}
