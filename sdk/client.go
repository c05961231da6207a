// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"
)

// ClientServer is a Running of a package with capability clients. Client serves one program that has connected to the
// module's socket, until it is done or ctx ends together with the map set. The connection is closed when it returns.
type ClientServer interface {
	Client(ctx context.Context, c *Client)
}

// Client is a program connected to the module's socket.
type Client struct {
	ID   uint64
	conn *net.UnixConn
	maps func(message json.RawMessage, maps []string) error
}

const (
	maxRequest = 4 << 10         // bytes of a program's message
	clientTime = 5 * time.Second // for one to be taken
)

// Receive waits for the next message: one JSON object and at most one descriptor, -1 if there is none, which the caller
// must close. It returns io.EOF when the program has disconnected.
func (c *Client) Receive(to any) (fd int, err error) {
	data, rights := make([]byte, maxRequest), make([]byte, 64)
	n, rn, _, _, err := c.conn.ReadMsgUnix(data, rights)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return -1, err
	}
	fds, err := descriptors(rights[:rn])
	if err == nil && len(fds) > 1 {
		err = errors.New("more than one descriptor in a message")
	}
	if err == nil {
		err = json.Unmarshal(data[:n], to)
	}
	if err != nil {
		closeAll(fds)
		return -1, err
	}
	return append(fds, -1)[0], nil
}

// Send sends a message to the program.
func (c *Client) Send(message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(clientTime))
	_, err = c.conn.Write(data)
	return err
}

// SendMaps sends a message with descriptors of maps of the map set. It can be called once, within 10 s after the
// program has connected. It does not wait: the agent sends the message.
func (c *Client) SendMaps(message any, maps ...string) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return c.maps(data, maps)
}

// Close closes the connection.
func (c *Client) Close() error {
	_ = c.conn.SetDeadline(time.Now()) // the agent has a copy for a while: closing ours may go unnoticed
	return errors.Join(shutdown(c.conn), c.conn.Close())
}

func shutdown(conn *net.UnixConn) error {
	return errors.Join(conn.CloseRead(), conn.CloseWrite())
}

// serveClient serves a connection with the current map set. Without one it closes the connection, and the program
// connects again.
func (p *moduleServer) serveClient(id uint64, conn *net.UnixConn) {
	c := &Client{ID: id, conn: conn}
	now := p.use()
	if now == nil {
		_ = c.Close()
		return
	}
	server, ok := now.state.(ClientServer)
	if !ok {
		now.users.Done()
		_ = c.Close()
		return
	}
	c.maps = func(message json.RawMessage, maps []string) error {
		return p.requests.sendMaps(ClientMaps{Client: id, MapSet: now.mapSet, Maps: maps, Message: message})
	}
	go func() {
		defer now.users.Done()
		defer c.Close()
		defer context.AfterFunc(now.ctx, func() { _ = conn.SetReadDeadline(time.Now()) })()
		server.Client(now.ctx, c)
	}()
}
