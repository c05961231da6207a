// SPDX-License-Identifier: Apache-2.0

// Copier is a typical TCP proxy in Go: io.Copy between two connections, which splices.
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		in, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go proxy(in.(*net.TCPConn), os.Args[2])
	}
}

func proxy(in *net.TCPConn, to string) {
	defer in.Close()
	conn, err := net.Dial("tcp", to)
	if err != nil {
		log.Print(err)
		return
	}
	out := conn.(*net.TCPConn)
	defer out.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		carry(out, in)
	}()
	carry(in, out)
	<-done
}

func carry(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		log.Print(err)
		to.SetLinger(0)
		to.Close()
		return
	}
	to.CloseWrite()
}
