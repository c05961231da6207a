// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kerb-edge/kerb/client"
)

// grpc calls a gRPC server on a Unix socket. Each call uses a separate connection, which needs no flow control between
// streams. The gRPC library would make kerb a third larger for five calls.
type grpc struct{ socket string }

// grpcError is a status other than 0 from the server.
type grpcError struct {
	method  string
	status  int
	message string
}

func (e *grpcError) Error() string {
	return fmt.Sprintf("%s: %s (gRPC status %d)", e.method, e.message, e.status)
}

const (
	grpcNotFound = 5
	grpcHeader   = 5       // bytes before each message: compression flag and length
	window       = 1 << 30 // flow control: messages are smaller
)

// stream is the response to a call.
type stream struct {
	net.Conn
	framer  *http2.Framer
	method  string
	pending []byte
	release func() bool
}

// open sends a request. The caller must close the stream, which ends with ctx.
func (g grpc) open(ctx context.Context, method, namespace string, request []byte) (*stream, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", g.socket)
	if err != nil {
		return nil, &client.DialError{Err: err}
	}
	s := &stream{Conn: conn, framer: http2.NewFramer(conn, conn), method: method}
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.release = context.AfterFunc(ctx, func() { conn.Close() })
	if err := s.send(namespace, request); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *stream) Close() error {
	s.release()
	return s.Conn.Close()
}

func (s *stream) send(namespace string, request []byte) error {
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	fields := [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/" + s.method}, {":authority", "localhost"},
		{"content-type", "application/grpc"}, {"te", "trailers"}}
	if namespace != "" {
		fields = append(fields, [2]string{"containerd-namespace", namespace})
	}
	for _, f := range fields {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // writes to memory
	}
	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))
	_, err := io.WriteString(s.Conn, http2.ClientPreface)
	return errors.Join(err,
		s.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush}, http2.Setting{ID: http2.SettingInitialWindowSize,
			Val: window}),
		s.framer.WriteWindowUpdate(0, window),
		s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true}),
		s.framer.WriteData(1, true, append(body, request...)))
}

// receive returns the next message, or io.EOF after the last one.
func (s *stream) receive() ([]byte, error) {
	for {
		if len(s.pending) >= grpcHeader {
			length := binary.BigEndian.Uint32(s.pending[1:])
			if length > maxListBytes || s.pending[0] != 0 {
				return nil, fmt.Errorf("%s: a message of %d bytes, compressed: %d", s.method, length, s.pending[0])
			}
			if end := grpcHeader + int(length); len(s.pending) >= end {
				message := s.pending[grpcHeader:end:end]
				s.pending = s.pending[end:]
				return message, nil
			}
		}
		if err := s.read(); err != nil {
			return nil, err
		}
	}
}

// read handles the next frame.
func (s *stream) read() error {
	frame, err := s.framer.ReadFrame()
	if err != nil {
		return fmt.Errorf("%s: %w", s.method, err)
	}
	switch f := frame.(type) {
	case *http2.DataFrame:
		s.pending = append(s.pending, f.Data()...)
		if size := f.Length; size > 0 {
			return errors.Join(s.framer.WriteWindowUpdate(0, size), s.framer.WriteWindowUpdate(1, size))
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return s.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return s.framer.WritePing(true, f.Data)
		}
	case *http2.MetaHeadersFrame:
		if f.StreamEnded() {
			return s.status(f.Fields)
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("%s: the stream was reset: %s", s.method, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Errorf("%s: the connection ends: %s", s.method, f.ErrCode)
	}
	return nil
}

// status returns the error in the trailer of a response.
func (s *stream) status(trailer []hpack.HeaderField) error {
	failed := grpcError{method: s.method, status: -1, message: "no status"}
	for _, f := range trailer {
		switch f.Name {
		case "grpc-status":
			failed.status, _ = strconv.Atoi(f.Value)
		case "grpc-message":
			failed.message = f.Value
		}
	}
	if failed.status == 0 {
		return io.EOF
	}
	return &failed
}

// call returns the response to a request. It reports false for status NOT_FOUND.
func (g grpc) call(ctx context.Context, method, namespace string, request []byte) ([]byte, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	s, err := g.open(ctx, method, namespace, request)
	if err != nil {
		return nil, false, err
	}
	defer s.Close()
	message, err := s.receive()
	var failed *grpcError
	if errors.As(err, &failed) && failed.status == grpcNotFound {
		return nil, false, nil
	}
	return message, err == nil, err
}
