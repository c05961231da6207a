// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// Round trips of a connection, and bytes of a request and of its response.
const turns, size = 1000, 64

// ask opens one connection after the other, on which it sends requests and waits for each response. For each connection
// it prints the median round trip in nanoseconds, and the number of round trips.
func ask(address string, pace time.Duration) {
	for ; ; time.Sleep(pace) {
		if took, err := connection(address); err == nil {
			slices.Sort(took)
			fmt.Println("turns", took[len(took)/2].Nanoseconds(), len(took))
		} else {
			fmt.Println(err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func connection(address string) (took []time.Duration, err error) {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	buffer := make([]byte, size)
	for range turns {
		began := time.Now()
		if _, err := c.Write(buffer); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, buffer); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// answer echoes all data.
func answer(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			buffer := make([]byte, size)
			for {
				if _, err := io.ReadFull(c, buffer); err != nil {
					return
				}
				if _, err := c.Write(buffer); err != nil {
					return
				}
			}
		}()
	}
}
