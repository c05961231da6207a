// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// upgrades returns the number of upgrades in TestUpgradeUnderLoad; every second one fails.
func upgrades(t *testing.T) int {
	t.Helper()
	text := os.Getenv("KERB_UPGRADES")
	if text == "" {
		return 4
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("KERB_UPGRADES: %v", err)
	}
	return n
}

// Three modules are upgraded back and forth together under more than 100,000 packets/s: one with a separate control
// plane process, and the firewall and the counter as packages in a directory. In every second upgrade the first of them
// is not healthy, and all three are rolled back automatically. No packet is lost or unprocessed, connections survive,
// and every packet is counted once. The full test takes a quarter of an hour and most of two CPUs at real-time
// priority:
//
//	KERB_UPGRADES=200 go test -count=1 -timeout 60m -run TestUpgradeUnderLoad -v ./test/e2e
func TestUpgradeUnderLoad(t *testing.T) {
	u := newUpgrading(newRunningNode(t))
	count, begin := upgrades(t), time.Now()
	account, err := traffic.Stream(u.db, u.web, streamPort, func() error {
		for i := range count {
			u.upgrade(i)
			u.checkTalks()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d upgrades of three modules, %d of them rolled back, in %v: %d packets at %.0f/s, %d lost (%+v of them in "+
		"full queues)",
		count, u.failed, time.Since(begin).Round(time.Second), account.Sent, account.Rate, account.Lost, account.Explained)
	if account.Lost > account.Explained.Socket+account.Explained.Backlog || account.Duplicated+account.Unprocessed+
		account.Doubled > 0 {
		t.Errorf("packets are lost or not processed once: %+v", account)
	}
	if account.Generations != 3 {
		t.Errorf("packets of %d generations came, want those of both versions and of the failing one", account.Generations)
	}
	u.checkCounts(account.Sent + account.Probes)
	wait.Until(t, "old versions end", func() bool { return len(u.children()) == 2 })
	u.checkPins()
}

// upgrading is a node with modules in two versions.
type upgrading struct {
	*node
	versions  [2]string
	dirs      [2]map[string]string // by version: packages by module
	failing   map[string]string
	now       int // current version
	failed    int
	maps      map[string]ebpf.MapID
	server    *net.UDPConn // of db
	stranger  *net.UDPConn // of db; web never communicates with it
	talks     []*net.UDPConn
	fromDB    uint64 // packets of the talks and of the stranger
	fromWeb   uint64
	forbidden uint64
}

func newUpgrading(n *node) *upgrading {
	n.T.Helper()
	u := &upgrading{node: n, versions: [2]string{"0.1.0", "0.2.0"}}
	packages := func(version string) map[string]string {
		return map[string]string{"bad": n.controlled(version), "fw": builtinCopy(n.T, "firewall", version),
			"traffic": builtinCopy(n.T, "counter", version)}
	}
	u.dirs, u.failing = [2]map[string]string{packages("0.1.0"), packages("0.2.0")}, packages("0.3.0")
	editFile(n.T, filepath.Join(u.failing["bad"], "kerb.yaml"), "control: {", "control: {healthWithin: 2s, ")
	n.apply(u.modules(u.dirs[0], "", 1)...)
	u.maps = u.mapIDs()
	u.server, u.stranger = u.listen(7001), u.listen(7002)
	u.talk()
	return u
}

// modules returns the three modules from packages of one version. Connections do not time out.
func (u *upgrading) modules(packages map[string]string, does string, generation int) []any {
	count, fw := counter(0), firewall(0)
	count.Spec.Package, fw.Spec.Package = packages["traffic"], packages["fw"]
	fw.Spec.Config["state"] = map[string]any{"timeouts": map[string]any{"udp": "1h", "udpStream": "1h"}}
	return []any{mode(packages["bad"], does, generation), count, fw}
}

// builtinCopy returns a built-in package as a directory, with another version.
func builtinCopy(t *testing.T, name, version string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS("../../modules/"+name)); err != nil {
		t.Fatal(err)
	}
	setVersion(t, dir, version)
	return dir
}

// upgrade changes to the other version, or tries one that fails.
func (u *upgrading) upgrade(i int) {
	u.T.Helper()
	if i%2 == 1 {
		u.failed++
		ill := []string{"sick", "crash"}[u.failed%2]
		u.refused(u.tryApply(u.modules(u.failing, ill, 3)...), 5, "version 0.3.0 was rolled back to "+u.versions[u.now])
	} else {
		u.now = 1 - u.now
		u.apply(u.modules(u.dirs[u.now], "", u.now+1)...)
	}
	for _, m := range get[[]v1.Module](u.node, "module") {
		if want := u.versions[u.now]; m.Status.Package.Version != want || m.Spec.Package != u.dirs[u.now][m.Metadata.Name] {
			u.T.Fatalf("after upgrade %d: %s has version %s, want %s", i, m.Metadata.Name, m.Status.Package.Version, want)
		}
		for _, c := range m.Status.Conditions {
			if c.Type == "ControlPlane" && (c.Status != "True" || strings.Contains(c.Message, "again")) {
				u.T.Errorf("after upgrade %d: %s: %+v", i, m.Metadata.Name, c)
			}
		}
	}
	if got := u.query("keep")["kept"]; got != "done" {
		u.T.Errorf("after upgrade %d the state directory: %s", i, got)
	}
	for name, id := range u.mapIDs() {
		if id != u.maps[name] {
			u.T.Errorf("after upgrade %d map %s is %d, and was %d", i, name, id, u.maps[name])
		}
	}
}

func (u *upgrading) mapIDs() map[string]ebpf.MapID {
	u.T.Helper()
	ids := map[string]ebpf.MapID{}
	for _, path := range []string{"traffic/counts", "fw/hits", "fw/table", "fw/pending4", "fw/established4"} {
		module, name, _ := strings.Cut(path, "/")
		ids[path] = u.mapID(module, name)
	}
	return ids
}

// listen opens a socket in db.
func (u *upgrading) listen(port uint16) (c *net.UDPConn) {
	u.T.Helper()
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(u.db.Addr4(), port))
	if err := u.db.Do(func() (err error) { c, err = net.ListenUDP("udp4", at); return err }); err != nil {
		u.T.Fatal(err)
	}
	u.T.Cleanup(func() { c.Close() })
	return c
}

// talk starts a connection from web to db, whose replies no rule of the firewall permits.
func (u *upgrading) talk() {
	u.T.Helper()
	var c *net.UDPConn
	at := u.server.LocalAddr().(*net.UDPAddr)
	if err := u.web.Do(func() (err error) { c, err = net.DialUDP("udp4", nil, at); return err }); err != nil {
		u.T.Fatal(err)
	}
	u.T.Cleanup(func() { c.Close() })
	u.talks = append(u.talks, c)
	u.send(c)
}

// send sends from web to db.
func (u *upgrading) send(c *net.UDPConn) {
	u.T.Helper()
	if _, err := c.Write([]byte("from web")); err != nil {
		u.T.Fatal(err)
	}
	u.fromWeb++
	_ = u.server.SetReadDeadline(time.Now().Add(nodetest.Patience))
	if _, from, err := u.server.ReadFromUDP(make([]byte, 64)); err != nil ||
		from.Port != c.LocalAddr().(*net.UDPAddr).Port {
		u.T.Fatalf("no datagram of web reaches db: from %v: %v", from, err)
	}
}

// checkTalks first sends from db on all connections so far: replies to packets from before the upgrade arrive, and
// packets of a stranger to the same ports do not. Then web sends, and starts another one.
func (u *upgrading) checkTalks() {
	u.T.Helper()
	for i, c := range u.talks {
		for _, from := range []*net.UDPConn{u.stranger, u.server} {
			if _, err := from.WriteTo([]byte(fmt.Sprint(from.LocalAddr())), c.LocalAddr()); err != nil {
				u.T.Fatal(err)
			}
			u.fromDB++
		}
		u.forbidden++
		text := make([]byte, 64)
		_ = c.SetReadDeadline(time.Now().Add(nodetest.Patience))
		if n, err := c.Read(text); err != nil || string(text[:n]) != u.server.LocalAddr().String() {
			u.T.Fatalf("connection %d of %d: web receives %q: %v", i, len(u.talks), text[:n], err)
		}
		u.send(c)
	}
	u.talk()
	var report struct{ Connections []struct{ Protocol string } }
	u.ask("fw", "connections", &report)
	if want := len(u.talks) + 1; len(report.Connections) != want { // and the stream
		u.T.Errorf("the firewall tracks %d connections, want %d", len(report.Connections), want)
	}
}

// ask reads a response of a module.
func (n *node) ask(module, route string, v any) {
	n.T.Helper()
	if err := json.Unmarshal([]byte(n.must("module", "query", module, route, "-o", "json")), v); err != nil {
		n.T.Fatal(err)
	}
}

// checkCounts compares the sent packets with the modules' counts over all versions.
func (u *upgrading) checkCounts(stream uint64) {
	u.T.Helper()
	if got, want := u.counted("db", "egress", "udp"), stream+u.fromDB; got != want {
		u.T.Errorf("the counter has %d packets from db, %d were sent", got, want)
	}
	type hits struct{ Packets uint64 }
	var report struct {
		Rules []struct {
			Name string
			hits
		}
		Other map[string]hits
	}
	u.ask("fw", "rules", &report)
	passed := report.Other["tracked"].Packets + report.Other["default_egress"].Packets
	for _, r := range report.Rules {
		passed += r.Packets
	}
	if want := stream + u.fromDB - u.forbidden + u.fromWeb; passed != want {
		u.T.Errorf("the firewall has let pass %d packets, want %d: %+v", passed, want, report)
	}
	if got := report.Other["default_ingress"].Packets; got != u.forbidden {
		u.T.Errorf("the firewall has dropped %d packets, want %d", got, u.forbidden)
	}
	if drops := get[v1.Module](u.node, "module", "fw").Status.Drops; len(drops) != 1 {
		u.T.Errorf("drops: %+v", drops)
	}
}
