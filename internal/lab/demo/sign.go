// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit"
	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit/server"
)

// sign is `kerb demo sign`: requests of cars are answered in the kernel.
var sign = scenario{
	name:  "sign",
	short: "A road sign whose requests are answered in the kernel",
	long: "Two network namespaces, a road sign and cars. First its user-space server replies, then the responder module " +
		"in the\nkernel, which continues without agent and server. Takes half a minute, needs root, and cleans up.",
	steps: []step{
		{"A road sign, its user-space server, and cars", (*demo).stepSign},
		{"The agent, on the sign", (*demo).stepAgent},
		{"Reply in the kernel", (*demo).stepRespond},
		{"Cars arrive", (*demo).stepCars},
		{"kill -9 the agent", (*demo).stepSignAlone},
	},
}

const (
	signAddress = "192.0.2.1"
	signPort    = 8080
	signAsks    = 20
	askEvery    = 50 * time.Millisecond // two messages each: the sign's sourceRate is 50 per second
)

// signs are the participants of the demo.
type signs struct {
	cars   net.Conn // from their namespace to the sign
	server *server.Server
}

func (d *demo) stepSign(context.Context) error {
	if err := d.clear(false); err != nil {
		return err
	}
	sign, err := d.host("sign", signAddress+"/24", "2001:db8::1/64")
	if err != nil {
		return err
	}
	d.node = sign.Namespace
	cars, err := d.host("cars", "192.0.2.2/24", "2001:db8::2/64")
	if err != nil {
		return err
	}
	if err := d.serveSign(); err != nil {
		return err
	}
	to := fmt.Sprintf("%s:%d", signAddress, signPort)
	if d.sign.cars, err = dialIn(cars.Namespace, "udp", to, time.Second); err != nil {
		return err
	}
	d.closers = append(d.closers, func() { d.sign.cars.Close() })
	d.say("Two network namespaces: the sign, with a server on UDP %s, and the cars, with %s.", to, cars.Addr4())
	return d.askSign("its server", signAsks, true)
}

// serveSign runs the ordinary server, which is unaware of Kerb.
func (d *demo) serveSign() error {
	var conn *net.UDPConn
	err := d.node.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: signPort})
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.sign.server = server.New(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = d.sign.server.Serve(ctx, conn) // unanswered requests show up in the checks
	}()
	d.closers = append(d.closers, func() { cancel(); <-ended })
	return nil
}

// askSign makes cars subscribe and leave, and checks which side answered.
func (d *demo) askSign(who string, n int, byServer bool) error {
	before := d.sign.server.Totals().Answered
	var took []time.Duration
	for range n {
		_, asked, err := d.getLimit()
		if err != nil {
			return fmt.Errorf("request of a car: %w", err)
		}
		took = append(took, asked)
		time.Sleep(askEvery)
	}
	slices.Sort(took)
	d.say("%d cars send a request and leave. Median time to the reply: %.0f us.", n, took[n/2].Seconds()*1e6)
	want, answered := uint64(0), d.sign.server.Totals().Answered-before
	if byServer {
		want = uint64(n)
	}
	d.check(fmt.Sprintf("%s replied to all %d requests; the server received %d of them", who, n, want), answered == want,
		"the server replied to %d", answered)
	return nil
}

// Operations of the sign: docs/responder.md.
const (
	opReply      = 3
	opGet        = 4
	opOutOfRange = 5
)

// getLimit queries the limit like an arriving car, and leaves. took is the time to the answer.
func (d *demo) getLimit() (limit uint32, took time.Duration, err error) {
	message, start := make([]byte, 8), time.Now()
	binary.BigEndian.PutUint32(message, opGet)
	err = d.sign.cars.SetDeadline(start.Add(5 * time.Second))
	if err == nil {
		_, err = d.sign.cars.Write(message)
	}
	if err == nil {
		_, err = d.sign.cars.Read(message)
	}
	took = time.Since(start)
	if got := binary.BigEndian.Uint32(message); err == nil && got != opReply {
		err = fmt.Errorf("operation %d in the reply", got)
	}
	if err != nil {
		return 0, 0, err
	}
	limit = binary.BigEndian.Uint32(message[4:])
	binary.BigEndian.PutUint32(message, opOutOfRange)
	_, err = d.sign.cars.Write(message)
	return limit, took, err
}

func (d *demo) stepRespond(ctx context.Context) error {
	if err := d.applyExample(ctx, "speedlimit.yaml"); err != nil {
		return err
	}
	if err := d.kerb(ctx, "module", "list"); err != nil {
		return err
	}
	return d.askSign("the kernel", signAsks, false)
}

func (d *demo) stepCars(ctx context.Context) error {
	limit, _, err := d.getLimit()
	d.check("on an empty road the limit is 120 km/h", err == nil && limit == 120, "%d %v", limit, err)
	if err := d.kerb(ctx, "module", "set", "sign", "road/cars=64"); err != nil {
		return err
	}
	limit, _, err = d.getLimit()
	want := uint32(speedlimit.Limit(65) + 0.5)
	d.check(fmt.Sprintf("the kernel computes the limit, which depends on a cosine: for the 65th car it is %d km/h", want),
		err == nil && limit == want, "%d %v", limit, err)
	state, err := d.answer(ctx, "module", "query", "sign", "state")
	all := fmt.Sprintf("answered=%d, left=%d", signAsks+2, signAsks+2)
	d.check("it counted each car on arrival and departure: "+all, strings.Contains(state, "cars=64") &&
		strings.Contains(state, all), "%q %v", state, err)
	return err
}

func (d *demo) stepSignAlone(ctx context.Context) error {
	if err := d.killAgent(); err != nil {
		return err
	}
	if err := d.askSign("without the agent the kernel", signAsks, false); err != nil {
		return err
	}
	if err := d.purge(ctx); err != nil {
		return err
	}
	return d.askSign("after the purge the server", signAsks, true)
}
