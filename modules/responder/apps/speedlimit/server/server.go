// SPDX-License-Identifier: Apache-2.0

// Package server is the road sign's ordinary server, which answers from a socket what the kernel does not. It runs with
// and without the module, unchanged and on the same port; where there is one, it learns from the module's events what
// was answered in the kernel, and sends it the requests that came up here.
package server

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit"
)

// Operations of the protocol: a request is u32 OP and u32 VALUE in the sender's byte order.
const (
	opReply      = 3
	opGet        = 4
	opOutOfRange = 5
	messageSize  = 8
)

// Server is a sign.
type Server struct {
	module *Module // nil without one

	mu       sync.Mutex
	cars     int64            // in range, as far as known here
	ahead    int64            // of them, those that the module has not been notified of
	kernel   speedlimit.State // what the module sent last
	answered uint64           // GET_SPEED_LIMIT answered here
	left     uint64           // OUT_OF_RANGE that came here
}

// New makes a sign; module may be nil.
func New(module *Module) *Server { return &Server{module: module} }

// Totals are what the server knows.
type Totals struct {
	Cars           int64  `json:"cars"`
	Answered       uint64 `json:"answered"`
	Left           uint64 `json:"left"`
	KernelAnswered uint64 `json:"kernelAnswered"`
	KernelLeft     uint64 `json:"kernelLeft"`
}

// Totals returns what was answered up to now.
func (s *Server) Totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Totals{s.cars, s.answered, s.left, s.kernel.Answered, s.kernel.Left}
}

// Serve answers on the socket until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, conn *net.UDPConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	if s.module != nil {
		following.Go(func() { s.module.follow(ctx, s.learn) })
	}
	buffer := make([]byte, messageSize+1)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		if reply := s.answer(ctx, buffer[:n]); reply != nil {
			s.send(conn, reply, from)
		}
	}
}

func (s *Server) send(conn *net.UDPConn, reply []byte, to netip.AddrPort) {
	if _, err := conn.WriteToUDPAddrPort(reply, to); err != nil {
		slog.Debug("reply not sent", "to", to, "error", err)
	}
}

// answer is the reply to a request, nil for none.
func (s *Server) answer(ctx context.Context, request []byte) []byte {
	if len(request) != messageSize {
		return nil
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(request) {
		case opGet:
			reply := make([]byte, messageSize)
			order.PutUint32(reply, opReply)
			order.PutUint32(reply[4:], uint32(math.Round(speedlimit.Limit(s.count(ctx, 1)))))
			return reply
		case opOutOfRange:
			s.count(ctx, -1)
			return nil
		}
	}
	return nil
}

// count takes a car in or out, here or, where there is a module, there. It returns how many are in range.
func (s *Server) count(ctx context.Context, add int64) int64 {
	var state *speedlimit.State
	if s.module != nil {
		state = s.module.add(ctx, add)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if add > 0 {
		s.answered++
	} else {
		s.left++
	}
	if state != nil {
		s.cars, s.kernel = state.Cars, *state
		return s.cars
	}
	before := s.cars
	s.cars = max(0, s.cars+add)
	s.ahead += s.cars - before
	return s.cars
}

// learn takes over what the module sends, and sends it what it does not know: of a module that has begun again, which
// may be if it is listened to again, everything. Else what is older than known was overtaken by an answer.
func (s *Server) learn(ctx context.Context, state speedlimit.State, again bool) {
	s.mu.Lock()
	ahead := s.ahead
	older := state.Answered < s.kernel.Answered || state.Left < s.kernel.Left
	if older && again {
		ahead, older = s.cars, false
	}
	s.ahead = 0
	s.mu.Unlock()
	if ahead != 0 {
		latest := s.module.add(ctx, ahead)
		if latest == nil {
			s.mu.Lock()
			s.ahead += ahead
			s.mu.Unlock()
			return
		}
		state, older = *latest, false
	}
	if older {
		return
	}
	s.mu.Lock()
	s.cars, s.kernel = state.Cars, state
	s.mu.Unlock()
}

// retry is how long the server leaves a module alone that did not answer.
const retry = time.Second
