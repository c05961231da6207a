// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// remote is the server's connection to a peer.
type remote struct {
	ns    *netlab.Namespace // of the server
	at    string            // the peer's address and port
	token string
	note  func(format string, args ...any)
}

// remoteLoads are the loads for a client on another machine. The cost of a request is summed over the CPUs of both
// ends, which requires one machine.
var remoteLoads = []string{"published", "until-loss", "threads", "offered"}

// remoteConfigs are publishedConfigs without AF_XDP, which uses one queue of the device.
var remoteConfigs = slices.DeleteFunc(slices.Clone(publishedConfigs), func(name string) bool { return name == "afxdp" })

// peerSlack is the time for a reply of the peer in addition to the duration of its client.
const peerSlack = time.Minute

// place returns this machine with the interface that leads to the peer.
func (r *remote) place() (*place, error) {
	var at, to netip.AddrPort
	err := r.ns.Do(func() error {
		conn, err := net.DialTimeout("tcp4", r.at, 10*time.Second)
		if err != nil {
			return fmt.Errorf("no `kerb bench peer` at %s: %w", r.at, err)
		}
		var err1, err2 error
		at, err1 = netip.ParseAddrPort(conn.LocalAddr().String())
		to, err2 = netip.ParseAddrPort(conn.RemoteAddr().String())
		return errors.Join(err1, err2, conn.Close())
	})
	if err != nil {
		return nil, err
	}
	p := &place{server: r.ns, address: at.Addr()}
	err = r.ns.Do(func() error {
		p.nic, err = interfaceTo(to.Addr())
		return err
	})
	return p, err
}

// interfaceTo returns the interface that leads to an address, in the thread's namespace.
func interfaceTo(addr netip.Addr) (string, error) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil {
		return "", fmt.Errorf("route to %s: %w", addr, err)
	}
	nic, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", err
	}
	return nic.Attrs().Name, nil
}

// ask runs the peer's client.
func (r *remote) ask(q peerRequest) (a clientReport, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	var conn net.Conn
	err = r.ns.Do(func() error {
		conn, err = net.DialTimeout("tcp4", r.at, 10*time.Second)
		return err
	})
	if err != nil {
		return a, err
	}
	defer conn.Close()
	err = conn.SetDeadline(time.Now().Add(time.Duration(q.Milliseconds)*time.Millisecond + peerSlack))
	if err != nil {
		return a, err
	}
	request, err := http.NewRequest(http.MethodPost, "http://"+r.at+askPath, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	request.Header.Set("Authorization", "Bearer "+r.token)
	if err := request.Write(conn); err != nil {
		return a, fmt.Errorf("peer %s: %w", r.at, err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return a, fmt.Errorf("peer %s: %w", r.at, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxReplySize))
	if err != nil || response.StatusCode != http.StatusOK {
		return a, errors.Join(err, fmt.Errorf("peer %s: %s: %s", r.at, response.Status, strings.TrimSpace(string(text))))
	}
	var whole peerReply
	err = errors.Join(json.Unmarshal(text, &whole), json.Unmarshal(whole.Answer, &a))
	if err != nil {
		return a, fmt.Errorf("peer %s: %w", r.at, err)
	}
	r.note("the client is on %s, on %d CPUs: %s", r.at, whole.CPUs, whole.Machine)
	return a, nil
}

// remoteTrial opens a config for each measurement, as all share one interface.
func (e *experiment) remoteTrial(f family, config, load string, n int) bench.Trial {
	variant := ""
	with := func(use func(*contender) error) (err error) {
		c, err := e.open(f, config)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		return use(c)
	}
	return bench.Trial{Config: config,
		Open: func() (io.Closer, error) {
			return nil, with(func(c *contender) error {
				err := e.chooseVariant(c, load, n)
				variant = c.variant
				return err
			})
		},
		Measure: func(context.Context) (samples []bench.Sample, err error) {
			err = with(func(c *contender) (err error) {
				c.variant = variant
				samples, err = f.measure(c, n)
				return err
			})
			return samples, err
		}}
}

// openRemote opens the peer of the flags, if any. The returned function closes it.
func openRemote(r *bench.Run, at, tokenFile string) (*remote, func(), error) {
	if at == "" {
		return nil, func() {}, nil
	}
	token, err := readToken(tokenFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--peer %s: %w", at, err)
	}
	ns, done, err := netlab.Current()
	return &remote{ns: ns, at: at, token: token, note: r.Note}, done, err
}
