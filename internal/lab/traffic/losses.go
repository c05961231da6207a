// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Losses are the kernel's counters of packets dropped because a buffer or queue was full.
type Losses struct {
	// Socket counts UDP datagrams that found the receive buffer full or no
	// memory, in the namespace of the calling thread.
	Socket uint64
	// Backlog counts packets that found a CPU's backlog full, on the whole
	// machine.
	Backlog uint64
}

// ReadLosses reads the counters since boot.
func ReadLosses() (Losses, error) {
	socket, err := udpBufferErrors()
	if err != nil {
		return Losses{}, err
	}
	backlog, err := backlogDrops()
	return Losses{Socket: socket, Backlog: backlog}, err
}

// Sub returns the difference to an earlier reading.
func (l Losses) Sub(before Losses) Losses {
	return Losses{Socket: l.Socket - before.Socket, Backlog: l.Backlog - before.Backlog}
}

// udpBufferErrors reads /proc/net/snmp: a line of names, a line of values.
func udpBufferErrors() (uint64, error) {
	data, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return 0, err
	}
	var names, values []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "Udp:" {
			names, values = values, fields
		}
	}
	var sum uint64
	for i, name := range names {
		if (name == "RcvbufErrors" || name == "MemErrors") && i < len(values) {
			n, err := strconv.ParseUint(values[i], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("snmp %s: %w", name, err)
			}
			sum += n
		}
	}
	return sum, nil
}

// backlogDrops adds up the second column of /proc/net/softnet_stat.
func backlogDrops() (uint64, error) {
	data, err := os.ReadFile("/proc/thread-self/net/softnet_stat")
	if err != nil {
		return 0, err
	}
	var sum uint64
	for line := range bytes.Lines(data) {
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseUint(string(fields[1]), 16, 64)
		if err != nil {
			return 0, fmt.Errorf("softnet_stat: %w", err)
		}
		sum += n
	}
	return sum, nil
}
