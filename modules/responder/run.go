// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// Run implements sdk.Runner: the changes of states, and what applications do. Streams of events end with it; their
// readers find the next map set when they come again.
func (f *Running) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	defer close(f.watch.ended)
	work.Go(func() { f.watch.run(ctx) })
	for i, a := range apps {
		if runner, ok := a.App.(app.Runner); ok {
			if all := f.ofApp(uint8(i), f.placed); len(all) > 0 {
				work.Go(func() { runner.Run(ctx, f.appLive(all)) })
			}
		}
	}
	f.refreshOrWarn()
	<-ctx.Done()
}

// AttachmentChanged implements sdk.AttachmentWatcher.
func (f *Running) AttachmentChanged(sdk.Attachment, bool) { f.refreshOrWarn() }

// refresh writes the addresses of attach points into the data plane.
func (f *Running) refresh() error {
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	return writeLocals(f.live.Maps, f.live.Attachments())
}

func (f *Running) refreshOrWarn() {
	if err := f.refresh(); err != nil {
		slog.Warn("responder: addresses of attach points", "module", f.live.Module, "error", err)
	}
}

func (f *Running) appLive(all []app.PlacedListener) app.Live {
	return app.Live{Maps: f.live.Maps, All: all, Watch: func(ctx context.Context) <-chan uint32 {
		return f.watch.subscribe(ctx, all)
	}}
}

// local4 mirrors struct rsp_local4, local6 struct rsp_local6.
type local4 struct {
	Ifindex uint32
	Addr    [4]byte
}

type local6 struct {
	Ifindex uint32
	Addr    [16]byte
}

// Values of both: enum rsp_local.
const (
	isOwn       = 1
	isBroadcast = 2
	isVirtual   = 3
)

// locals says what addresses are to attach points. Interfaces of the node share theirs: it takes a packet for any of
// its addresses on each of them.
func locals(instances []sdk.Attachment) (map[local4]uint32, map[local6]uint32, error) {
	v4, v6 := map[local4]uint32{}, map[local6]uint32{}
	var wrong error
	for _, at := range instances {
		if at.Virtual() {
			v4[local4{Ifindex: at.Ifindex}] = isVirtual
		}
		for _, from := range instances {
			if from.Ifindex != at.Ifindex && (from.Service != "" || at.Service != "") {
				continue
			}
			for _, text := range from.Addresses {
				p, err := netip.ParsePrefix(text)
				if err != nil {
					wrong = errors.Join(wrong, fmt.Errorf("interface %s: %w", from.Interface, err))
					continue
				}
				if p.Addr().Is6() {
					v6[local6{at.Ifindex, p.Addr().As16()}] = isOwn
					continue
				}
				for _, b := range broadcasts(p) {
					if v4[local4{at.Ifindex, b}] != isOwn {
						v4[local4{at.Ifindex, b}] = isBroadcast
					}
				}
				v4[local4{at.Ifindex, p.Addr().As4()}] = isOwn
			}
		}
	}
	return v4, v6, wrong
}

// broadcasts are the directed broadcast addresses of a network: the highest, and the lowest, which old hosts take for
// it.
func broadcasts(p netip.Prefix) [][4]byte {
	if p.Bits() > 30 { // RFC 3021: point to point
		return nil
	}
	low := p.Masked().Addr().As4()
	high := binary.BigEndian.Uint32(low[:]) | ^uint32(0)>>p.Bits()
	return [][4]byte{low, [4]byte(binary.BigEndian.AppendUint32(nil, high))}
}

func writeLocals(m sdk.Maps, instances []sdk.Attachment) error {
	v4, v6, wrong := locals(instances)
	return errors.Join(wrong,
		sdk.SyncTable(m, mapLocal4, v4, func(local4, uint32) bool { return true }),
		sdk.SyncTable(m, mapLocal6, v6, func(local6, uint32) bool { return true }))
}

// Health implements sdk.HealthChecker: a healthy responder has written the addresses and kinds of its attach points,
// without which the data plane leaves requests with partial checksums to the server. A listener without addresses needs
// theirs.
func (f *Running) Health() error {
	if err := f.refresh(); err != nil {
		return fmt.Errorf("addresses of attach points: %w", err)
	}
	for _, l := range f.listeners {
		if len(l.addresses) > 0 {
			continue
		}
		for _, at := range f.live.Attachments() {
			if len(at.Addresses) == 0 {
				return fmt.Errorf("interface %s has no address for listener %s; set the listener's addresses", at.Interface, l.Name)
			}
		}
	}
	return nil
}
