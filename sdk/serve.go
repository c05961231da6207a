// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Serve is the main function of a control plane written in Go: it serves control until the agent ends or asks it to
// stop. It sets the default logger, so that levels and attributes reach the agent's log.
func Serve(control Control) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	logToAgent()
	listener, maps, err := sockets(ListenFD, MapsFD)
	if err != nil {
		return fmt.Errorf("%w (a control plane is started by the agent, which hands over its sockets)", err)
	}
	return serveControl(ctx, os.Getenv("KERB_MODULE"), control, listener, maps)
}

// logToAgent writes slog records as JSON lines, which the agent parses. The agent adds the time.
func logToAgent() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{}
			}
			return a
		},
	})))
}

// sockets opens the two inherited descriptors.
func sockets(listen, maps int) (net.Listener, *net.UnixConn, error) {
	listenFile, mapsFile := os.NewFile(uintptr(listen), "listen"), os.NewFile(uintptr(maps), "maps")
	defer listenFile.Close() // both are duplicated
	defer mapsFile.Close()
	listener, err := net.FileListener(listenFile)
	if err != nil {
		return nil, nil, fmt.Errorf("descriptor %d: %w", listen, err)
	}
	conn, err := unixConn(mapsFile)
	if err != nil {
		listener.Close()
		return nil, nil, fmt.Errorf("descriptor %d: %w", maps, err)
	}
	return listener, conn, nil
}

func unixConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a Unix socket")
	}
	return u, nil
}

// HostMessage asks a process that runs ServeMany for another control plane. It has two descriptors: those that a
// process of its own would have as ListenFD and MapsFD.
type HostMessage struct {
	Module  string `json:"module"`
	Package string `json:"package"`
}

// ServeMany serves the control planes of several packages in one process, which saves memory. Requests for modules
// arrive on descriptor ListenFD, a SOCK_SEQPACKET socket; for each module the contract is the same as for a process of
// its own.
func ServeMany(controls map[string]Control) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	logToAgent()
	file := os.NewFile(ListenFD, "modules")
	conn, err := unixConn(file)
	file.Close()
	if err != nil {
		return fmt.Errorf("descriptor %d: %w (this is started by the agent)", ListenFD, err)
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		message, listener, maps, err := receiveModule(conn)
		if err != nil || ctx.Err() != nil {
			stop()
			return nil // the agent has ended, or asks it to stop
		}
		control := controls[message.Package]
		if control == nil {
			slog.Error("no such control plane", "package", message.Package)
			listener.Close()
			maps.Close()
			continue
		}
		serving.Go(func() {
			if err := serveControl(ctx, message.Module, control, listener, maps); err != nil {
				slog.Error("control plane ended", "module", message.Module, "error", err)
			}
		})
	}
}

// receiveModule receives the first message with exactly two descriptors: the listening socket and the socket for maps.
// On an error it closes the received descriptors.
func receiveModule(conn *net.UnixConn) (HostMessage, net.Listener, *net.UnixConn, error) {
	var message HostMessage
	fds, err := receiveJSON(conn, 2, &message)
	if err == nil && len(fds) != 2 {
		err = fmt.Errorf("%d descriptors, not 2", len(fds))
	}
	if err != nil {
		closeAll(fds)
		return message, nil, nil, err
	}
	listener, maps, err := sockets(fds[0], fds[1])
	return message, listener, maps, err
}
