// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/sdk"
)

// A frame that arrives at an interface passes its chain and continues like one from its other end: here over the
// bridge, to the other host.
func TestArrive(t *testing.T) {
	w := newWorld(t, Options{})
	spec := w.deploy(t, chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}, chain.Egress,
		testModule(t, "drop", "dropper", map[string]any{"port": 53}))
	if !w.passes(t, 54) { // the bridge forwards
		t.Fatal("no connection")
	}
	var server net.PacketConn
	if err := w.b.Do(func() (err error) {
		server, err = net.ListenPacket("udp4", netip.AddrPortFrom(w.b.Addr4(), 55).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	frame := func(port uint16, payload string) sdk.Arrival {
		f := packet.Fields{SrcMAC: w.a.MAC().String(), DstMAC: w.b.MAC().String(), Src: w.a.Addr4(), Dst: w.b.Addr4(),
			UDP: &packet.Ports{Src: 4000, Dst: port}, Payload: payload}
		data, err := f.Frame()
		if err != nil {
			t.Fatal(err)
		}
		return sdk.Arrival{Ifindex: uint32(w.a.OuterIndex()), Frame: data}
	}
	if err := Arrive([]sdk.Arrival{frame(55, "arrived"), frame(53, "dropped")}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, from, err := server.ReadFrom(buf); err != nil || string(buf[:n]) != "arrived" ||
		from.String() != netip.AddrPortFrom(w.a.Addr4(), 4000).String() {
		t.Errorf("%q from %v: %v", buf[:n], from, err)
	}
	maps, err := w.Maps("dropper", spec.Members[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the chain drops", func() bool {
		n, err := Drops(maps)
		return err == nil && n[1] == 1
	})
	gone := frame(55, "")
	gone.Ifindex = 1 << 30
	if err := Arrive([]sdk.Arrival{gone}); err == nil {
		t.Error("a frame arrives at an interface that does not exist")
	}
}
