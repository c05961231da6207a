// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// moduleMessage is the module's reply, or a later event.
type moduleMessage struct {
	Ring       int    `json:"ring"`
	Generation uint64 `json:"generation"`
	Error      string `json:"error"`
	Event      string `json:"event"`
}

// Indices of the descriptors that are passed with the reply.
const (
	ringFD = iota
	stateFD
	controlsFD
	descriptors
)

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// dial connects to the socket of a module. Receives time out after ten seconds.
func dial(path string) (int, error) {
	conn, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	patience := unix.NsecToTimeval((10 * time.Second).Nanoseconds())
	_ = unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
	if err := unix.Connect(conn, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(conn)
		return -1, fmt.Errorf("connect to %s: %w (is the module applied, and may this user open it?)", path, err)
	}
	return conn, nil
}

// receiveMessage receives a message and its descriptors. It returns io.EOF if the peer has closed the connection.
func receiveMessage(conn, flags int) (message moduleMessage, fds []int, err error) {
	line, control := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*descriptors))
	n, m, _, _, err := unix.Recvmsg(conn, line, control, flags|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return message, nil, err
	}
	if n == 0 {
		return message, nil, io.EOF
	}
	parts, _ := unix.ParseSocketControlMessage(control[:m])
	for i := range parts {
		more, _ := unix.ParseUnixRights(&parts[i])
		fds = append(fds, more...)
	}
	return message, fds, json.Unmarshal(line[:n], &message)
}

// requestClass opens a class on a connection, and returns the reply and its descriptors.
func requestClass(conn int, class string, takeover bool) (moduleMessage, []int, error) {
	line, err := json.Marshal(map[string]any{"open": class, "takeover": takeover, "pid": os.Getpid()})
	if err != nil {
		return moduleMessage{}, nil, err
	}
	if err := unix.Sendmsg(conn, line, nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return moduleMessage{}, nil, fmt.Errorf("open class %s: %w", class, err)
	}
	answer, fds, err := receiveMessage(conn, 0)
	switch {
	case err != nil:
		err = fmt.Errorf("open class %s: %w", class, err)
	case answer.Error != "":
		err = errors.New(answer.Error)
	case len(fds) != descriptors:
		err = errors.New("the module's answer is none: Kerb's and this package's versions differ")
	}
	if err != nil {
		closeAll(fds)
		fds = nil
	}
	return answer, fds, err
}
