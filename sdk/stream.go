// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"encoding/json"
	"net/http"
	"sync"
)

// Stream passes values on to its current clients. The zero value is ready to use and must not be copied.
type Stream[T any] struct {
	mu      sync.Mutex
	ended   bool
	clients map[*StreamClient[T]]bool
}

// StreamClient reads a stream. It loses new values while StreamQueue values wait for it.
type StreamClient[T any] struct {
	Values <-chan T // closed at the end of the stream

	stream *Stream[T]
	values chan T
	lost   uint64 // since it was asked last
}

// StreamQueue is the number of values that may wait for a client.
const StreamQueue = 256

// Send passes a value to all clients.
func (s *Stream[T]) Send(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		select {
		case c.values <- v:
		default:
			c.lost++
		}
	}
}

// HasClients reports whether any client reads.
func (s *Stream[T]) HasClients() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients) > 0
}

// End ends the stream for all clients, after the values that they have not read yet. It may be called once.
func (s *Stream[T]) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.clients {
		close(c.values)
	}
	s.clients = nil
}

// Open adds a client, which the caller must close.
func (s *Stream[T]) Open() *StreamClient[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := make(chan T, StreamQueue)
	c := &StreamClient[T]{Values: values, values: values, stream: s}
	if s.ended {
		close(values)
		return c
	}
	if s.clients == nil {
		s.clients = map[*StreamClient[T]]bool{}
	}
	s.clients[c] = true
	return c
}

// Close removes the client.
func (c *StreamClient[T]) Close() {
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	delete(c.stream.clients, c)
}

// Lost returns the number of values lost since the last call.
func (c *StreamClient[T]) Lost() (n uint64) {
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	n, c.lost = c.lost, 0
	return n
}

// Serve writes the values of before, then new ones, as one JSON object per line, until the client of the request
// disconnects or the stream ends. {"lost": n} replaces values that the client was too slow for.
func (c *StreamClient[T]) Serve(w http.ResponseWriter, r *http.Request, before []T) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, stream := json.NewEncoder(w), http.NewResponseController(w)
	for _, v := range before {
		if out.Encode(v) != nil {
			return
		}
	}
	for stream.Flush() == nil {
		select {
		case <-r.Context().Done():
			return
		case v, ok := <-c.Values:
			if n := c.Lost(); n > 0 && out.Encode(map[string]uint64{"lost": n}) != nil {
				return
			}
			if !ok || out.Encode(v) != nil {
				return
			}
		}
	}
}
