// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// dialIn connects from a namespace. The address must be numeric.
func dialIn(ns *netlab.Namespace, network, address string, timeout time.Duration) (net.Conn, error) {
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = net.DialTimeout(network, address, timeout)
		return err
	})
	return c, err
}

// webClient sends requests from a namespace, each on a new connection.
func webClient(ns *netlab.Namespace, timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			return dialIn(ns, network, address, timeout)
		},
	}}
}

func get(c *http.Client, url string) error {
	answer, err := c.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, answer.Status)
	}
	return nil
}

// requests polls a web server, and counts the results.
type requests struct {
	client *http.Client
	url    string
	cancel context.CancelFunc
	done   chan struct{}

	mu             sync.Mutex
	answered, lost int
	slowest        time.Duration
	last           error
}

const (
	requestEvery = 20 * time.Millisecond
	requestLimit = 30 * time.Second
)

func startRequests(ns *netlab.Namespace, url string) *requests {
	ctx, cancel := context.WithCancel(context.Background())
	r := &requests{client: webClient(ns, requestLimit), url: url, cancel: cancel, done: make(chan struct{})}
	go r.run(ctx)
	return r
}

func (r *requests) run(ctx context.Context) {
	defer close(r.done)
	tick := time.NewTicker(requestEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			start := time.Now()
			r.count(get(r.client, r.url), time.Since(start))
		}
	}
}

func (r *requests) count(err error, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.lost++
		r.last = err
		return
	}
	r.answered++
	r.slowest = max(r.slowest, took)
}

// requestCounts are the answered and lost requests so far.
type requestCounts struct {
	answered, lost int
	slowest        time.Duration
	last           error // of the last lost request
}

func (r *requests) tally() requestCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return requestCounts{r.answered, r.lost, r.slowest, r.last}
}

func (r *requests) stop() {
	r.cancel()
	<-r.done
}

// stream is an iperf3 client that reports every second.
type stream struct {
	process *process

	mu    sync.Mutex
	rates []float64 // Mbit/s, by second
}

// streamRate is low enough for a small, busy machine.
const streamRate = "300M"

var rateLine = regexp.MustCompile(`-\s*[0-9.]+\s+sec\s.*\s([0-9.]+) Mbits/sec`)

func (d *demo) streamTo(h *netlab.Host) (*stream, error) {
	s := &stream{process: &process{d.client.Command(context.Background(), "iperf3", "--client", h.Addr4().String(),
		"--time", "0", "--bitrate", streamRate, "--interval", "1", "--format", "m", "--forceflush"), make(chan struct{})}}
	s.process.SysProcAttr.Setpgid = true
	out, err := s.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.process.Start(); err != nil {
		return nil, fmt.Errorf("start iperf3: %w", err)
	}
	go s.read(out)
	return s, nil
}

func (s *stream) read(out io.Reader) {
	defer close(s.process.ended)
	s.parse(out)
	_ = s.process.Wait()
}

// parse extracts the rate from each line that has one.
func (s *stream) parse(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if found := rateLine.FindStringSubmatch(lines.Text()); found != nil {
			rate, err := strconv.ParseFloat(found[1], 64)
			if err == nil {
				s.add(rate)
			}
		}
	}
}

func (s *stream) add(rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rates = append(s.rates, rate)
}

// seconds returns the rates so far.
func (s *stream) seconds() []float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]float64(nil), s.rates...)
}

func (d *demo) stopTraffic() {
	if d.requests != nil {
		d.requests.stop()
		d.requests = nil
	}
	if d.stream != nil {
		_ = d.stream.process.stop(syscall.SIGKILL) // it is a child
		d.stream = nil
	}
}

// watch lets traffic flow for a while, and prints the rates.
func (d *demo) watch(ctx context.Context, duration time.Duration) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	end := time.After(duration)
	for {
		select {
		case <-ctx.Done():
			return
		case <-end:
			d.endProgress()
			return
		case <-tick.C:
			t, seconds := d.requests.tally(), d.stream.seconds()
			rate := 0.0
			if len(seconds) > 0 {
				rate = seconds[len(seconds)-1]
			}
			d.progress("%d requests answered, %d lost; iperf3 %.0f Mbit/s", t.answered, t.lost, rate)
		}
	}
}

// checkTraffic compares with before: no request was lost in the meantime, and the stream flowed in every second.
func (d *demo) checkTraffic(before requestCounts, secondsBefore int) {
	now := d.requests.tally()
	d.check(fmt.Sprintf("%d requests were answered during this step, none lost", now.answered-before.answered),
		now.answered > before.answered && now.lost == before.lost, "%d answered, %d lost: %v", now.answered-before.answered,
		now.lost-before.lost, now.last)
	seconds := d.stream.seconds()[secondsBefore:]
	for deadline := time.Now().Add(30 * time.Second); len(seconds) == 0 &&
		time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		seconds = d.stream.seconds()[secondsBefore:]
	}
	stalled := 0
	for _, rate := range seconds {
		if rate == 0 {
			stalled++
		}
	}
	d.check(fmt.Sprintf("iperf3 transferred data in each of %d seconds", len(seconds)), len(seconds) > 0 && stalled == 0,
		"%v Mbit/s", seconds)
}

// probe sends datagrams that the firewall should drop.
func (d *demo) probe(to *netlab.Host, port uint16, n int) error {
	c, err := dialIn(d.client.Namespace, "udp", d.at(to, port), time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	for range n {
		if _, err := c.Write([]byte("kerb demo")); err != nil {
			return err
		}
	}
	return nil
}
