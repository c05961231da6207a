// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/client"
)

// setPointConfigs are the ways of setting the answer: a CoAP PUT to a server in user space; a request to the agent for
// each value; lines of one open request to the agent. On two CPUs, a spinning server would leave no CPU to the program
// that sets values.
var setPointConfigs = []string{"user", "put", "feed"}

const (
	firstNumber   = 200 // first number of a round; the client expects three digits
	lastNumber    = 999 // the client exits after it
	setEvery      = 10 * time.Millisecond
	setAfter      = 100 * time.Millisecond // delay after the client's start
	followTimeout = 10 * time.Minute
)

// setter sets a number, and returns after its confirmation; a feed has none.
type setter struct {
	set     func(number int) error
	replies bool
	bench.Closers
}

func (c *contender) setter() (*setter, error) {
	switch c.config {
	case "put":
		api := client.New(c.agents[0].Socket())
		return &setter{replies: true, set: func(n int) error {
			return api.Call(context.Background(), http.MethodPut, "/v1/modules/responder/values/coap-5683"+coapPath,
				map[string]any{"value": fmt.Sprint(n)}, nil)
		}}, nil
	case "feed":
		return c.feed()
	}
	return c.datagrams()
}

// feed sends lines of a pipe to the agent.
func (c *contender) feed() (*setter, error) {
	lines, out := io.Pipe()
	request, err := http.NewRequest(http.MethodPut, "http://kerb/v1/modules/responder/apps/coap/feed", lines)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-ndjson")
	ended := make(chan error, 1)
	go func() {
		r, err := client.Unix(c.agents[0].Socket()).RoundTrip(request)
		if err == nil {
			text, _ := io.ReadAll(r.Body)
			if err = r.Body.Close(); r.StatusCode != http.StatusOK {
				err = fmt.Errorf("feed: %s: %s", r.Status, text)
			}
		}
		lines.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // unblocks a writer
		ended <- err
	}()
	s := &setter{}
	s.Later(func() error { return errors.Join(out.Close(), <-ended) })
	to := json.NewEncoder(out)
	s.set = func(n int) error { return to.Encode(map[string]any{"path": coapPath, "value": fmt.Sprint(n)}) }
	return s, nil
}

// datagrams sends each number to the server and waits for the reply.
func (c *contender) datagrams() (*setter, error) {
	s := &setter{replies: true}
	var conn net.Conn
	err := c.place.server.Do(func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(c.place.address.String(), fmt.Sprint(c.port())))
		return err
	})
	if err != nil {
		return nil, err
	}
	s.Later(conn.Close)
	s.set = func(n int) error {
		request := []byte{0x40, 3, byte(n >> 8), byte(n)} // confirmable PUT without a token
		request = append(append(request, "\xb7sensors\x0broad-sign-7\x0bspeed-limit\xff"...), fmt.Sprint(n)...)
		if _, err := conn.Write(request); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(followTimeout)); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 64))
		return err
	}
	return s, nil
}

// point has the begin and end of setting a number, in ns of the monotonic clock.
type point struct {
	number     int
	began, set int64
}

// measureSetPoints sets values one after the other while threads request them.
func (e *experiment) measureSetPoints(c *contender, threads int) (samples []bench.Sample, err error) {
	err = c.serving(c.variant, func() error {
		s, err := c.setter()
		if err != nil {
			return err
		}
		var a clientReport
		asked := make(chan error, 1)
		go func() {
			var err error
			a, err = c.client("follow", threads, followTimeout, 0)
			asked <- err
		}()
		points, err := s.setAll(int(e.lengths.follow / setEvery))
		err = errors.Join(err, <-asked)
		if err == nil {
			err = s.set(firstNumber - 1) // lower than all numbers of the next round
		}
		if err = errors.Join(err, s.Close()); err != nil {
			return err
		}
		e.check(c, a)
		samples = e.setPointSamples(c, a, points, s.replies)
		return nil
	})
	return samples, err
}

// setAll sets n numbers, and lastNumber.
func (s *setter) setAll(n int) (points []point, err error) {
	time.Sleep(setAfter)
	for number := firstNumber; number < firstNumber+n; number++ {
		p := point{number: number, began: monotonic()}
		if err := s.set(number); err != nil {
			return nil, err
		}
		p.set = monotonic()
		points = append(points, p)
		time.Sleep(setEvery)
	}
	return points, s.set(lastNumber)
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // fails for unknown clocks only
	return t.Nano()
}

// setPointSamples returns when each number, or a later one, was answered first, when an earlier one was answered last,
// and how many earlier ones answered a request that was sent after the number had been set.
func (e *experiment) setPointSamples(c *contender, a clientReport, points []point, replies bool) []bench.Sample {
	var took, first, old []float64
	stale := uint64(0)
	for _, p := range points {
		now, before := a.since(p.number), a.until(p.number)
		if p.began < a.Begin {
			continue // before the client's first request
		}
		if now.First == 0 {
			e.run.Invalidate("%s: number %d was set, but is in no reply", c.config, p.number)
			return nil
		}
		first = append(first, float64(now.First-p.began)/1e3)
		old = append(old, max(0, float64(before.Last-p.began)/1e3))
		if replies {
			took = append(took, float64(p.set-p.began)/1e3)
		}
		if replies && before.Sent > p.set {
			stale++
		}
	}
	if len(first) == 0 {
		e.run.Invalidate("%s: no number was set after the client started", c.config)
		return nil
	}
	samples := append(bench.MedianAnd99("new_after", "us", first), bench.MedianAnd99("old_until", "us", old)...)
	if replies {
		samples = append(append(samples, bench.MedianAnd99("set", "us", took)...), bench.Count("stale", stale))
	}
	return append(samples, bench.P50("rate", "1/s", a.rate()), bench.Count("set_points", uint64(len(first))))
}

// since returns the observation of a number or a later one, since some are replaced before the next request.
func (a clientReport) since(number int) (all observation) {
	for n, h := range a.Heard {
		if n >= number {
			all = all.with(h)
		}
	}
	return all
}

// until returns the observation of earlier numbers.
func (a clientReport) until(number int) (all observation) {
	for n, h := range a.Heard {
		if n < number {
			all = all.with(h)
		}
	}
	return all
}

func (h observation) with(other observation) observation {
	if h.First == 0 || other.First != 0 && other.First < h.First {
		h.First = other.First
	}
	return observation{h.First, max(h.Last, other.Last), max(h.Sent, other.Sent)}
}
