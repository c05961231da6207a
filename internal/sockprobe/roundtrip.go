// SPDX-License-Identifier: Apache-2.0

package sockprobe

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// RoundTrip is the time to send a message over loopback and to receive one of the same size: the minimum of several.
type RoundTrip struct {
	Bytes      int           `json:"bytes"`
	Plain      time.Duration `json:"plain"`      // by TCP
	Redirected time.Duration `json:"redirected"` // when both are redirected
}

// roundTripSizes are message sizes. Redirection saves time per message and costs time per byte, so large ones may be
// slower.
var roundTripSizes = []int{1 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}

// roundTripRepeats is how often each size is measured, alternating between both ways, so that load affects both.
const roundTripRepeats = 9

// roundTrips compares redirected and plain sockets on this machine: below which size of messages redirection saves time
// depends on the kernel and the CPU.
func (l *lab) roundTrips() ([]RoundTrip, error) {
	plain, err := dial()
	if err != nil {
		return nil, fmt.Errorf("connect over loopback: %w", err)
	}
	defer plain.close()
	through, err := l.connect(redirected)
	if err != nil {
		return nil, err
	}
	defer through.close()
	var out []RoundTrip
	for _, size := range roundTripSizes {
		t := RoundTrip{Bytes: size}
		buffers := [2][]byte{make([]byte, size), make([]byte, size)}
		for range roundTripRepeats {
			for _, way := range []struct {
				pair *pair
				best *time.Duration
			}{{plain, &t.Plain}, {through, &t.Redirected}} {
				took, err := way.pair.turn(buffers)
				if err != nil {
					return nil, fmt.Errorf("exchange messages of %d bytes: %w", size, err)
				}
				if *way.best == 0 || took < *way.best {
					*way.best = took
				}
			}
		}
		out = append(out, t)
	}
	return out, nil
}

// turn has one end send a message, and the other answer when it has all of it.
func (p *pair) turn(buffers [2][]byte) (time.Duration, error) {
	answered := make(chan error, 1)
	go func() {
		err := fill(p.b, buffers[1])
		if err == nil {
			err = send(p.b, buffers[1])
		}
		answered <- err
	}()
	begun := time.Now()
	err := send(p.a, buffers[0])
	if err == nil {
		err = fill(p.a, buffers[0])
	}
	took := time.Since(begun)
	if otherErr := <-answered; err == nil {
		err = otherErr
	}
	return took, err
}

// fill receives as many bytes as there is room for.
func fill(fd int, buffer []byte) error {
	for n := 0; n < len(buffer); {
		m, _, err := unix.Recvfrom(fd, buffer[n:], 0)
		if err == unix.EINTR { // with a limit of time the kernel does not continue by itself
			continue
		}
		if err != nil {
			return fmt.Errorf("receive after %d of %d bytes: %w", n, len(buffer), err)
		}
		if m == 0 {
			return fmt.Errorf("end of file after %d of %d bytes", n, len(buffer))
		}
		n += m
	}
	return nil
}
