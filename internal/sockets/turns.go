// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Turn is how long it takes to send a message and to get one as large back, over loopback: the best of some.
type Turn struct {
	Bytes      int           `json:"bytes"`
	Plain      time.Duration `json:"plain"`      // by TCP
	Redirected time.Duration `json:"redirected"` // when both are redirected
}

// turnSizes are messages between which redirection may cease to pay; what it saves is by message, what it costs by byte.
var turnSizes = []int{1 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}

// turnRounds is how often each size is tried, in turn by both ways, so that what disturbs the machine disturbs both.
const turnRounds = 9

func (l *lab) turns() ([]Turn, error) {
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
	var out []Turn
	for _, size := range turnSizes {
		t := Turn{Bytes: size}
		buffers := [2][]byte{make([]byte, size), make([]byte, size)}
		for range turnRounds {
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
