// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

// clientReport is what the client prints; times are in us.
type clientReport struct {
	bench.Times

	Sent, Answered, Wrong, Curved uint64
	Seconds                       float64
	// Busy time of all CPUs in s, and of that what the client, the server and the kernel between them had.
	Taken, Spent float64
	// ThreadMeans are what a request took on each thread, all of its time divided by its requests, in us.
	ThreadMeans []float64
	busy        *busy

	// Of the thread next to others (alongside.h), whose times the embedded ones are.
	BystanderSent, BystanderAnswered uint64
	// Of cars (cars.h), whose ages the embedded times are: answers that are not the limit, and by how many km/h.
	Off                           uint64
	ErrorMean, ErrorP99, ErrorMax float64
	// Of set-points (follow.h): when the first request was sent, and by number. Times are of the monotonic clock, in ns.
	Begin int64
	Heard map[int]observation
}

// observation is when a number was answered first and last, and when the last request was sent that it answered, in ns
// of the monotonic clock.
type observation struct{ First, Last, Sent int64 }

func (a clientReport) lost() uint64 { return a.Sent - min(a.Sent, a.Answered) }

func (a clientReport) rate() float64 { return float64(a.Answered) / a.Seconds }

// client runs one mode of the client: threads or flows, for a time, and requests per thread or a rate. More arguments
// are the mode's own.
func (c *contender) client(mode string, threads int, duration time.Duration, number float64,
	more ...string) (clientReport, error) {
	if c.remote != nil {
		return c.remote.ask(peerRequest{mode, c.protocol, c.port(), threads, duration.Milliseconds(), number})
	}
	own, _ := c.tools.cpus()
	args := []string{mode, c.wire(), c.place.address.String(), strconv.Itoa(c.port()), own, c.tools.allCPUs(),
		strconv.Itoa(threads), strconv.FormatInt(duration.Milliseconds(), 10), strconv.FormatFloat(number, 'f', -1, 64),
		strconv.Itoa(c.pid)}
	cmd := command(c.place.client, c.tools.Path("client"), append(args, more...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var a clientReport
	if err := cmd.Run(); err != nil {
		return a, fmt.Errorf("client %s: %w: %s", mode, err, &stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), &a); err != nil {
		return a, fmt.Errorf("client %s: %w: %s", mode, err, &stdout)
	}
	return a, nil
}
