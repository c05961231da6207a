// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/pidtest"
)

// acceleratesAll returns a config that also accelerates short connections.
func acceleratesAll(mode string) map[string]any {
	config := allowed()
	config["mode"], config["thresholds"] = mode, map[string]any{"minTurns": 0}
	return config
}

// number returns the value of an environment variable, or a default.
func number(t *testing.T, name string, usual int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// empty checks that no connection has left entries in the module's maps.
func (n *node) empty() {
	n.T.Helper()
	for _, name := range []string{"ends", "sockets", "offers"} {
		n.Eventually("map "+name+" is empty", func() bool { return n.entries(name) == 0 })
	}
}

// Connections that end leave no entries: KERB_CONNECTIONS of them.
func TestEntries(t *testing.T) {
	n := newAcceleratedNode(t, acceleratesAll("adaptive"))
	count := number(t, "KERB_CONNECTIONS", 5_000)
	server := n.serve(n.b)
	n.warm(server)
	client := n.startPeer(n.a, silence, append(append([]string{"brief", "4"}, to(addresses(n.b))...),
		strconv.Itoa(count))...)
	if err := client.finish(); err != nil {
		t.Error(err)
	}
	if err := server.finish(); err != nil {
		t.Error(err)
	}
	if plain {
		return
	}
	sum := n.pairReport()
	t.Logf("%+v", sum)
	if int(sum.Accelerated) < count*9/10 {
		t.Errorf("only %d of %d connections were accelerated", sum.Accelerated, count)
	}
	n.empty()
}

// warm waits until the module has evaluated a server and its clients.
func (n *node) warm(server *peer) {
	n.T.Helper()
	if plain {
		return
	}
	n.Eventually("connections are accelerated", func() bool {
		client := n.startPeer(n.a, silence, append(append([]string{"brief", "1"}, to(addresses(n.b))...), "8")...)
		if err := client.finish(); err != nil {
			n.T.Fatal(err)
		}
		return n.pairReport().Bytes > 0
	})
}

// memory returns the kernel's memory for small objects of general use, in bytes. It includes elements of maps and
// sockets in maps, but not objects such as inodes, of which other processes use many.
func memory(t *testing.T) (sum int) {
	t.Helper()
	caches, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(caches)) {
		words := strings.Fields(line) // name active_objs num_objs objsize ...
		if strings.HasPrefix(words[0], "kmalloc-") && !strings.HasPrefix(words[0], "kmalloc-rcl-") {
			objects, _ := strconv.Atoi(words[2])
			size, _ := strconv.Atoi(words[3])
			sum += objects * size
		}
	}
	return sum
}

// hold returns when a client has used each of its connections turns times. It repeats that for each byte written to its
// standard input.
func (n *node) hold(turns, connections int) *peer {
	n.T.Helper()
	p := n.startPeer(n.a, silence, append(append([]string{"hold", strconv.Itoa(turns)}, to(addresses(n.b))...),
		strconv.Itoa(connections))...)
	n.isReady(p)
	return p
}

// Idle connections leave the map, and continue, also if the agent was killed in the meantime.
func TestIdle(t *testing.T) {
	if plain {
		t.Skip("nothing goes out of a map")
	}
	pidtest.NeedPIDs(t)
	config := acceleratesAll("adaptive")
	config["thresholds"].(map[string]any)["idle"] = 1
	n := newAcceleratedNode(t, config)
	const connections = 200
	server := n.serve(n.b)
	n.warm(server)
	client := n.hold(8, connections)
	n.Eventually("the connections have left", func() bool { return n.pairReport().Refused["idle"] >= connections })
	n.Kill()
	_, _ = client.stdin.Write([]byte{0}) // may have ended: finish reports it
	n.Start()
	n.settled()
	n.Eventually("sockets are out of the map", func() bool { return n.entries("sockets") == 0 })
	_, _ = client.stdin.Write([]byte{0})
	if err := client.finish(); err != nil {
		t.Error(err)
	}
	if err := server.finish(); err != nil {
		t.Error(err)
	}
	t.Logf("%+v", n.pairReport())
	n.empty()
}

// held returns the memory of connections right after some turns, and when they are idle.
func (n *node) held(server *peer, connections int) (active, idle int) {
	n.T.Helper()
	n.Eventually("earlier connections are forgotten", func() bool { return plain || n.entries("ends") == 0 })
	time.Sleep(time.Second) // the kernel frees later
	before := memory(n.T)
	client := n.hold(8, connections)
	active = memory(n.T) - before
	n.T.Logf("%d ends, %d of them in the map", n.entries("ends"), n.entries("sockets"))
	n.Eventually("sockets are out of the map", func() bool { return n.entries("sockets") == 0 })
	time.Sleep(time.Second) // the kernel frees later
	idle = memory(n.T) - before
	if err := client.finish(); err != nil {
		n.T.Error(err)
	}
	return active, idle
}

// The memory of 10,000 accelerated connections in addition to that of as many plain ones, measured with KERB_MEMORY=1
// on an otherwise idle machine. The kernel's sk_psock of active connections take 20.5 MB; that of idle ones has a
// limit.
func TestMemory(t *testing.T) {
	if os.Getenv("KERB_MEMORY") == "" || plain {
		t.Skip("KERB_MEMORY=1 measures on a machine at rest")
	}
	const connections, rounds, most = 10_000, 2, 16_000_000
	aged := func(mode string) map[string]any {
		config := acceleratesAll(mode)
		config["thresholds"].(map[string]any)["idle"] = 10
		return config
	}
	n := newAcceleratedNode(t, aged("adaptive"))
	server := n.serve(n.b)
	n.warm(server)
	n.held(server, connections) // the first fills caches
	least := map[string]int{}
	for range rounds {
		for _, mode := range []string{"off", "adaptive"} {
			n.Apply(accelerator(aged(mode)))
			active, idle := n.held(server, connections)
			t.Logf("%s: %.1f MB, idle %.1f MB", mode, float64(active)/1e6, float64(idle)/1e6)
			if was, ok := least[mode]; !ok || idle < was {
				least[mode] = idle
			}
		}
	}
	if err := server.finish(); err != nil {
		t.Error(err)
	}
	if more := least["adaptive"] - least["off"]; more > most {
		t.Errorf("%d idle connections take %d bytes more than plain ones, which are more than %d", connections, more, most)
	}
}
