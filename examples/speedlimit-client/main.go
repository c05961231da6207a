// SPDX-License-Identifier: Apache-2.0

// Command speedlimit-client is a car that passes the road sign of docs/responder.md: it requests the speed limit,
// prints it, and leaves.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"os"
	"time"
)

const (
	opReply         = 3
	opGetSpeedLimit = 4
	opOutOfRange    = 5
)

func main() {
	to := flag.String("to", "192.0.2.1:8080", "address and port of the sign")
	timeout := flag.Duration("timeout", time.Second, "how long to wait for the answer")
	flag.Parse()
	if err := pass(*to, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "speedlimit-client:", err)
		os.Exit(1)
	}
}

// pass requests the limit as a car that comes into range, and then reports that the car has left.
func pass(to string, timeout time.Duration) error {
	sign, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer sign.Close()
	start := time.Now()
	if err := sign.SetDeadline(start.Add(timeout)); err != nil {
		return err
	}
	if _, err := sign.Write(message(opGetSpeedLimit)); err != nil {
		return err
	}
	answer := make([]byte, 9) // one byte more than a message
	n, err := sign.Read(answer)
	if err != nil {
		return err
	}
	if op := binary.BigEndian.Uint32(answer); n != 8 || op != opReply {
		return fmt.Errorf("the answer has %d bytes and operation %d, not 8 and %d", n, op, opReply)
	}
	fmt.Printf("%d km/h, after %d us\n", binary.BigEndian.Uint32(answer[4:]), time.Since(start).Microseconds())
	_, err = sign.Write(message(opOutOfRange))
	return err
}

func message(op uint32) []byte {
	m := make([]byte, 8)
	binary.BigEndian.PutUint32(m, op)
	return m
}
