// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/inject"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/internal/packet"
)

// The figure of one round is the median of several runs, each of which follows one of the base.
const (
	runs       = 25
	runsQuick  = 15
	testRuns   = 200_000 // packets in one test run
	liveFrames = 100_000 // packets in one live run
	liveBatch  = 64      // the NAPI poll budget
)

// loopback has index 1 in every namespace.
const loopback = 1

// testbed has the hosts and programs for the measurements of all configs.
type testbed struct {
	lab *netlab.Lab
	// chain is the host of the measured config; the others have the dropping program only, attached with TCX and with
	// clsact.
	chain, tcxBase, clsactBase *netlab.Host

	passXDP, passTC, drop *ebpf.Program
	links                 []link.Link
	runs                  int
	frame                 []byte
}

func openTestbed(quick bool) (s *testbed, err error) {
	s = &testbed{runs: runs, frame: frame(ipv4)}
	if quick {
		s.runs = runsQuick
	}
	if err := s.loadPrograms(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if err := s.buildHosts(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *testbed) loadPrograms() error {
	spec, err := bench.Object(files, "module.bpf.o")
	if err != nil {
		return err
	}
	for name, p := range map[string]**ebpf.Program{
		"pass_xdp": &s.passXDP, "drop_tc": &s.drop, "pass_tc": &s.passTC,
	} {
		coll, err := ebpf.NewCollection(selectProgram(spec, name))
		if err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
		*p = coll.DetachProgram(name)
		coll.Close()
	}
	return nil
}

func (s *testbed) buildHosts() error {
	lab, err := netlab.NewIn(labPrefix)
	if err != nil {
		return err
	}
	s.lab = lab
	for name, host := range map[string]**netlab.Host{"chain": &s.chain, "tcx": &s.tcxBase, "clsact": &s.clsactBase} {
		if *host, err = lab.Host(name, netlab.HostOptions{}); err != nil {
			return err
		}
	}
	return errors.Join(s.tcxBase.Do(s.prepareTCXBase), s.clsactBase.Do(s.prepareClsactBase))
}

// prepareTCXBase also attaches the passing XDP program. For a program that is not attached, each test run patches the
// kernel's XDP dispatcher twice, which takes longer than the run.
func (s *testbed) prepareTCXBase() error {
	pass, err := bench.AttachXDP(s.tcxBase.Namespace, s.tcxBase.Interface(), s.passXDP)
	if err != nil {
		return err
	}
	s.links = append(s.links, pass)
	if bench.HaveTCX() != nil {
		return nil // run then leaves the TC loads out
	}
	drop, err := attachTCX(loopback, s.drop)
	if err != nil {
		return err
	}
	s.links = append(s.links, drop)
	return nil
}

func (s *testbed) prepareClsactBase() error {
	if _, err := bench.AddClsact(loopback); err != nil {
		return err
	}
	return addFilter(loopback, 2, 1, s.drop)
}

func (s *testbed) close() error {
	err := bench.CloseAll(s.links)
	for _, p := range []*ebpf.Program{s.passXDP, s.drop, s.passTC} {
		if p != nil {
			err = errors.Join(err, p.Close())
		}
	}
	if s.lab != nil {
		err = errors.Join(err, s.lab.Close())
	}
	return err
}

// frame returns a UDP frame over IPv4 of 64 bytes (60 without FCS), or over IPv6 of 84 bytes.
func frame(of family) []byte {
	f := packet.Fields{Src: netip.AddrFrom4([4]byte{10, 99, 1, 1}), Dst: netip.AddrFrom4([4]byte{10, 99, 1, 2}),
		UDP: &packet.Ports{Src: 12345, Dst: 5201}, Payload: string(make([]byte, 18))}
	if of == ipv6 {
		f.Src, f.Dst = netip.MustParseAddr("fd99::1"), netip.MustParseAddr("fd99::2")
	}
	out, err := f.Frame()
	if err != nil {
		panic(err) // impossible for constants
	}
	return out
}

// placed is an attached chain.
type placed struct {
	swap, detach func() error
}

// place attaches a chain: XDP to a host's veth in native mode, TC to the ingress of a loopback interface, in front of
// the dropping program.
func (s *testbed) place(hook string, ch Chain) (placed, error) {
	if r, ok := ch.(multiProgram); ok {
		return s.placeMulti(r)
	}
	return s.placeLinked(hook, ch.(Linked))
}

func (s *testbed) placeMulti(r multiProgram) (placed, error) {
	err := s.chain.Do(func() error { return r.attach(loopback, s.drop) })
	p := placed{
		swap:   func() error { return s.chain.Do(r.swap) },
		detach: func() error { return s.chain.Do(r.detach) },
	}
	if err != nil {
		return placed{}, errors.Join(err, p.detach())
	}
	return p, nil
}

// placeLinked attaches the program of a chain, followed on TC by the dropping program: packets that reach it have
// passed all modules. Like the agent, it replaces programs by updating the link.
func (s *testbed) placeLinked(hook string, ch Linked) (placed, error) {
	var links []link.Link
	err := s.chain.Do(func() (err error) {
		if hook == "xdp" {
			var l link.Link
			l, err = bench.AttachXDP(s.chain.Namespace, s.chain.Interface(), ch.Program())
			links = []link.Link{l}
		} else {
			links, err = s.attachTC(ch.Program())
		}
		return err
	})
	if err != nil {
		return placed{}, err
	}
	now := ch.Program()
	return placed{
		swap: func() error {
			p, err := ch.Replace()
			if err != nil || p == now {
				return err
			}
			now = p
			return links[0].Update(p)
		},
		detach: func() error { return bench.CloseAll(links) },
	}, nil
}

func (s *testbed) attachTC(p *ebpf.Program) ([]link.Link, error) {
	first, err := attachTCX(loopback, p)
	if err != nil {
		return nil, err
	}
	last, err := attachTCX(loopback, s.drop)
	if err != nil {
		return nil, errors.Join(err, first.Close())
	}
	return []link.Link{first, last}, nil
}

// packetTime is the time of one packet in ns.
type packetTime struct {
	ns    float64 // as measured; for test runs with the overhead of the run
	added float64 // above the base without modules
	sent  uint64
}

// packet measures a chain and its base alternately.
func (s *testbed) packet(kind string, ch Chain) (packetTime, error) {
	count := uint32(testRuns)
	if kind == "tc" {
		count = liveFrames
	}
	var with, added []float64
	err := traffic.RunOnCPU(1, func() error {
		for range s.runs {
			b, err := s.sendBase(kind, ch, count)
			if err != nil {
				return err
			}
			w, err := s.send(kind, ch, count)
			if err != nil {
				return err
			}
			with, added = append(with, w), append(added, w-b)
		}
		return nil
	})
	t := packetTime{ns: bench.Median(with), added: bench.Median(added), sent: uint64(s.runs) * uint64(count)}
	if kind == "tc" {
		t.ns = t.added
	}
	return t, err
}

// send sends packets through a chain and returns the time of one, in ns.
func (s *testbed) send(kind string, ch Chain, count uint32) (ns float64, err error) {
	if kind != "tc" {
		return s.testRun(s.lab.Node(), ch.(Linked).Program(), count, 0)
	}
	return s.live(s.chain, count)
}

func (s *testbed) sendBase(kind string, ch Chain, count uint32) (ns float64, err error) {
	_, classic := ch.(*clsact)
	switch {
	case kind == "xdp":
		return s.testRun(s.lab.Node(), s.passXDP, count, 0)
	case kind == "tc-run":
		return s.testRun(s.lab.Node(), s.passTC, count, 0)
	case classic:
		return s.live(s.clsactBase, count)
	}
	return s.live(s.tcxBase, count)
}

// live sends frames up the stack of a host, from its loopback.
func (s *testbed) live(h *netlab.Host, count uint32) (ns float64, err error) {
	return s.testRun(h.Namespace, s.passXDP, count, inject.LiveFrames)
}

// testRun runs a program on the frame, and returns the time of one run.
func (s *testbed) testRun(ns *netlab.Namespace, p *ebpf.Program, count, flags uint32) (float64, error) {
	opts := &ebpf.RunOptions{Data: slices.Clone(s.frame), Repeat: count, Flags: flags}
	if flags == inject.LiveFrames {
		opts.BatchSize = liveBatch
	}
	took, err := inject.Run(ns, p, opts)
	if err != nil {
		return 0, fmt.Errorf("test run: %w", err)
	}
	return took, nil
}
