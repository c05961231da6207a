// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/ui"
)

// Hostile texts for the view Packets: an element that executes code, characters that control terminals, and marks that
// reverse the direction of the following text.
const (
	hostileName    = "<script>document.title='owned'</script>\x1b[2J\x07\u202egnp.exe\u2066" // of a rule
	hostileDevice  = "<b>\x1b\u202eno"                                                       // at most 15 bytes
	hostilePayload = "<script>document.title='sent'</script>\x1b]0;owned\x07\u202e\r\n"
)

// Packets, names in them and comments of captures are text in the view Packets, whatever they contain.
func TestHostilePackets(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	web, db := n.Host("web"), n.Host("db")
	fw := firewall("allow")
	fw.Spec.Config = map[string]any{"rules": []any{
		map[string]any{"name": hostileName, "action": "deny", "direction": "ingress", "protocol": "udp", "dstPort": 5432},
		map[string]any{"action": "allow", "direction": "egress"}}}
	counter := node.Module("odd", "counter", "", nil)
	counter.Spec.Attach, counter.Spec.Budget = v1.Attach{Interfaces: []string{hostileDevice}}, slow
	device := hostileInterface(t, n)
	n.Apply(node.Service(web, "app=web"), node.Service(db, "app=db"), fw, counter)
	keepSending(t, web.Do, netip.AddrPortFrom(db.Addr4(), 5432), []byte(hostilePayload), 1, 100*time.Millisecond)
	keepSending(t, n.Lab.Node().Do, netip.AddrPortFrom(device, 5432), []byte(hostilePayload), 1, 100*time.Millisecond)

	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	b.shows(".live", "live")
	b.script("location.hash = '#/packets'", nil)
	b.enter("#trace input[name=port]", "5432")
	b.click("#trace button")
	const traced = "#trace ~ .packets"
	b.has(traced, hostileName, "rule", hostileDevice)
	b.script("const b = document.querySelector('#trace button'); if (b.innerText.includes('Stop')) b.click()", nil)
	b.shows("#trace button", "Trace")
	b.click("#dropped button") // read again
	b.has("#kept", hostileName, "drop (policy)")
	b.enter("#whatif input", fmt.Sprintf("udp 198.51.100.7:4000 > %s:5432 <script>alert(1)</script>", db.Addr4()))
	b.click("#whatif button")
	b.has("#whatif ~ [role=alert], #explained, main", "<script>alert(1)</script>")

	// The captured payload is unchanged in the file; its comment has no character that controls a terminal.
	b.click("#capture")
	file := filepath.Join(b.downloads, "kerb.pcapng")
	wait.Until(t, "the capture is saved", func() bool { _, err := os.Stat(file); return err == nil })
	data, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(data, []byte(hostilePayload)) {
		t.Errorf("the capture has %d bytes without the payload: %v", len(data), err)
	}
	out, err := exec.Command("tshark", "-r", file, "-Y", "udp.dstport == 5432", "-T", "fields", "-e",
		"frame.comment").Output()
	if err != nil || !strings.Contains(string(out), "<script>document.title") {
		t.Errorf("tshark: %v: %q", err, out)
	}
	if strings.ContainsAny(string(out), "\x1b\a\u202e\u2066") {
		t.Errorf("a comment controls the terminal: %q", out)
	}

	var title string
	b.script("return document.title + document.querySelectorAll('main script, .packets li b').length", &title)
	if title != "Kerb0" {
		t.Errorf("the page has executed payload: %q", title)
	}
}

// has waits until elements have texts, character by character.
func (b *browser) has(selector string, texts ...string) {
	b.t.Helper()
	for _, want := range texts {
		var text string
		wait.Until(b.t, fmt.Sprintf("%q in %s", want, selector), func() bool {
			b.script(fmt.Sprintf("return [...document.querySelectorAll(%q)].map(e => e.textContent).join('\\n')", selector),
				&text)
			return strings.Contains(text, want)
		}, func() any { return fmt.Sprintf("%q", text[:min(len(text), 2000)]) })
	}
}

// hostileInterface creates an interface of the node whose name is code, and returns the address of its other end.
func hostileInterface(t *testing.T, n *nodetest.Node) netip.Addr {
	t.Helper()
	address := netip.MustParseAddr("198.18.9.2")
	if err := n.Lab.Node().Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = hostileDevice
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "other"}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(hostileDevice)
		peer, peerErr := netlink.LinkByName("other")
		at, addressErr := netlink.ParseAddr("198.18.9.1/30")
		if err := errors.Join(err, peerErr, addressErr); err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(link, at), netlink.LinkSetUp(link), netlink.LinkSetUp(peer),
			netlink.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: address.AsSlice(),
				State: netlink.NUD_PERMANENT, HardwareAddr: peer.Attrs().HardwareAddr}))
	}); err != nil {
		t.Fatal(err)
	}
	return address
}

// The page follows events, and reports that it has lost some: here a line about that arrives with those of the agent.
func TestLostEventsAreShown(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	agent := client.New(n.Socket())
	request := func(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
		r, err := agent.Send(ctx, method, path, body)
		if err == nil && strings.HasPrefix(path, "/v1/events?") {
			r.Body = &prefixed{io.MultiReader(strings.NewReader("{\"lost\":7}\n"), r.Body), r.Body}
		}
		return r, err
	}
	server, listener, err := ui.Listen(t.Context(), 0, ui.Options{Agent: request})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		end()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	b.screen(1280, 860, "light")
	b.open(server.URL())
	b.shows(".live", "live")
	b.script("location.hash = '#/changes'", nil)
	b.shows("main [role=alert]", "Events are missing: 7 came faster than they were read")
	b.shows("main", "Agent Started")
	n.Apply(node.Module("count", "counter", "*", nil))
	b.shows("main", "module/count", "ControlPlane Started") // without reading all again
}

// prefixed is a response with a prefix.
type prefixed struct {
	io.Reader
	io.Closer
}
