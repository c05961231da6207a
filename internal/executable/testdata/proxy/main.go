// SPDX-License-Identifier: Apache-2.0

// Command proxy copies between TCP connections as Go programs do.
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		server, err := net.Dial("tcp", os.Args[2])
		if err != nil {
			log.Fatal(err)
		}
		go io.Copy(server, client)
		go io.Copy(client, server)
	}
}
