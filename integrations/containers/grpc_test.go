// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// serveGRPC answers one call with answer, which gets the server's side of the connection after the request.
func serveGRPC(t *testing.T, answer func(*http2.Framer)) grpc {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if data, ok := frame.(*http2.DataFrame); ok && data.StreamEnded() {
				answer(f)
				_ = c.(*net.UnixConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				return
			}
		}
	}()
	return grpc{socket}
}

func trailer(f *http2.Framer, fields ...string) {
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for i := 0; i < len(fields); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true,
		EndStream: true})
}

func message(length int, content string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(length)), content...)
}

// A message may consist of many frames, between unrelated frames. An invalid message, or a status other than 0, is an
// error, except for status NOT_FOUND.
func TestGRPC(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*http2.Framer)
		want   string
	}{
		"in pieces": {func(f *http2.Framer) {
			_ = f.WriteSettings()
			_ = f.WritePing(false, [8]byte{1})
			for _, b := range message(5, "hello") {
				_ = f.WriteData(1, false, []byte{b})
			}
			trailer(f, "grpc-status", "0")
		}, `"hello" true <nil>`},
		"empty":     {func(f *http2.Framer) { _ = f.WriteData(1, false, message(0, "")) }, `"" true <nil>`},
		"no such":   {func(f *http2.Framer) { trailer(f, "grpc-status", "5", "grpc-message", "x") }, `"" false <nil>`},
		"refused":   {func(f *http2.Framer) { trailer(f, "grpc-status", "7", "grpc-message", "not you") }, "not you"},
		"no status": {func(f *http2.Framer) { trailer(f, ":status", "200") }, "no status"},
		"no message": {func(f *http2.Framer) { trailer(f, "grpc-status", "0") },
			"EOF"},
		"too long":   {func(f *http2.Framer) { _ = f.WriteData(1, false, message(maxListBytes+1, "x")) }, "a message of"},
		"compressed": {func(f *http2.Framer) { _ = f.WriteData(1, false, []byte{1, 0, 0, 0, 1, 0}) }, "compressed: 1"},
		"reset":      {func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeRefusedStream) }, "REFUSED_STREAM"},
		"going away": {func(f *http2.Framer) { _ = f.WriteGoAway(0, http2.ErrCodeInternal, nil) }, "INTERNAL_ERROR"},
		"cut off":    {func(f *http2.Framer) { _ = f.WriteData(1, false, message(9, "x")) }, "EOF"},
	} {
		answer, found, err := serveGRPC(t, c.answer).call(t.Context(), namespacesList, "", nil)
		if got := fmt.Sprintf("%q %v %v", answer, found, err); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// No input from containerd causes a panic, and ids are those of containers.
func FuzzContainerd(f *testing.F) {
	f.Add(withText(withText(nil, 2, "default"), 3, "/tasks/start"))
	f.Add(withText(withText(nil, 1, "web"), 5, string(withText(nil, 2, `{"linux": {"namespaces": [{"type": "network"}]}}`))))
	f.Fuzz(func(t *testing.T, text []byte) {
		if e, ok := decodeEvent(text); ok && !strings.Contains(e.id, "/") {
			t.Errorf("id %q", e.id)
		}
		if c := decodeContainer("default", text); !strings.HasPrefix(c.ID, "default/") {
			t.Errorf("id %q", c.ID)
		}
	})
}
