// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bufio"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An agent that has answered with an error, and does not answer to the last attempt in time, has its error returned.
func TestRetryReturnsTheAnswer(t *testing.T) {
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	go func() {
		for first := true; ; first = false {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if !first {
				continue // no answer
			}
			_, _ = bufio.NewReader(c).ReadString('\n')
			_, _ = c.Write([]byte("HTTP/1.0 500 Internal Server Error\r\n\r\n{\"detail\": \"no map\"}"))
			c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	a := agent{socket.Addr().String()}
	if err := retry(ctx, func() error { return a.pending(ctx) }); err == nil || !strings.Contains(err.Error(), "no map") {
		t.Errorf("%v, want the answer of the agent", err)
	}
}
