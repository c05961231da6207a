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

// clientReport is the output of the client; times in us.
type clientReport struct {
	bench.Times

	Sent, Answered, Wrong, Curved uint64
	Seconds                       float64
	// CPU seconds: all that were used, and those of client, server and the kernel between them.
	Taken, Spent float64
	// ThreadMeans are the mean times of a request per thread: the thread's whole time divided by its requests, in us.
	ThreadMeans []float64
	busy        *busy

	// Requests of the other thread of alongside.h, to which the embedded times belong.
	BystanderSent, BystanderAnswered uint64
	// Answers of cars.h with a wrong limit, and the errors in km/h. The embedded times are the ages of limits.
	Off                           uint64
	ErrorMean, ErrorP99, ErrorMax float64
	// Observations of follow.h by number, and the time of the first request. Times are in ns of the monotonic clock.
	Begin int64
	Heard map[int]observation
}

// observation has the times of the first and last answer with a number, and the send time of the last request that it
// answered, in ns of the monotonic clock.
type observation struct{ First, Last, Sent int64 }

func (a clientReport) lost() uint64 { return a.Sent - min(a.Sent, a.Answered) }

func (a clientReport) rate() float64 { return float64(a.Answered) / a.Seconds }

// client runs one mode of the client: threads or flows, duration, and requests per thread or a rate. Further arguments
// depend on the mode.
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
