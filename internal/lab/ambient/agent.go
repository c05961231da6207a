// SPDX-License-Identifier: Apache-2.0

package ambient

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// patience is the timeout of ztunnel's connection and responses.
const patience = 30 * time.Second

// Admit passes the pods' namespaces to a running ztunnel by the protocol of ztunnel's proto/zds.proto: acknowledged
// packets on a Unix socket. When it returns, ztunnel listens in all of them. The connection must stay open.
func (a *Agent) Admit() error {
	until := time.Now().Add(patience)
	if err := a.listener.SetDeadline(until); err != nil {
		return err
	}
	var err error
	if a.conn, err = a.listener.AcceptUnix(); err != nil {
		return fmt.Errorf("ztunnel does not connect: %w", err)
	}
	if err := a.conn.SetDeadline(until); err != nil {
		return err
	}
	if _, err := a.conn.Read(make([]byte, 64)); err != nil { // ZdsHello
		return fmt.Errorf("ztunnel says nothing: %w", err)
	}
	for _, pod := range a.mesh.Pods {
		if err := admit(a.conn, pod); err != nil {
			return fmt.Errorf("ztunnel, pod %s: %w", pod.Name(), err)
		}
	}
	const snapshotSent = 3
	return send(a.conn, field(nil, snapshotSent, nil), nil)
}

// admit sends AddWorkload with the namespace's file.
func admit(conn *net.UnixConn, pod *netlab.Host) error {
	ns, err := os.Open(pod.Path())
	if err != nil {
		return err
	}
	defer ns.Close()
	name := []byte(pod.Name())
	info := field(field(field(nil, 1, name), 2, []byte("default")), 3, name) // name, namespace, service account
	add := field(field(nil, 1, name), 2, info)                               // uid, workload_info
	return send(conn, field(nil, 1, add), unix.UnixRights(int(ns.Fd())))
}

// field appends a field with bytes, a string or a message.
func field(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// send sends a WorkloadRequest. Its acknowledgement has an error, or is empty.
func send(conn *net.UnixConn, request, rights []byte) error {
	if _, _, err := conn.WriteMsgUnix(request, rights, nil); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	number, _, tag := protowire.ConsumeTag(answer[:n])
	if ack, size := protowire.ConsumeBytes(answer[max(0, tag):n]); number != 1 || size < 0 || len(ack) > 0 {
		return fmt.Errorf("it answers %q", answer[:n])
	}
	return nil
}
