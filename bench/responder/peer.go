// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/bench"
)

func init() { bench.RegisterCommand(peerCommand) }

// peerRequest requests one run of the client, against the server that sends it. It is the body of a POST to askPath.
type peerRequest struct {
	Mode         string  `json:"mode"`
	Protocol     string  `json:"protocol"`
	Port         int     `json:"port"`
	Threads      int     `json:"threads"` // or flows
	Milliseconds int64   `json:"milliseconds"`
	Number       float64 `json:"number"` // requests per thread, or per second
}

// peerReply has the client's output, and a description of its machine.
type peerReply struct {
	Answer  json.RawMessage `json:"answer"`
	Machine string          `json:"machine"`
	CPUs    int             `json:"cpus"`
}

const (
	askPath = "/ask"
	// Maximum sizes of the bodies of request and reply; a thread's mean takes at most 24 bytes.
	maxRequestSize = 4 << 10
	maxReplySize   = 1 << 20
	// Limits of a request.
	peerThreads = 1000
	peerNumber  = 1e7
	peerLength  = 10 * time.Minute
	shortToken  = 16 // minimum length of a token, in characters
)

// check rejects requests that no benchmark sends.
func (q peerRequest) check() error {
	switch {
	case !slices.Contains([]string{"ask", "offer"}, q.Mode) || !slices.Contains([]string{"speed", "coap"}, q.Protocol):
		return fmt.Errorf("mode %q of protocol %q: modes are ask and offer, protocols speed and coap", q.Mode, q.Protocol)
	case q.Port < 1 || q.Port > math.MaxUint16 || q.Threads < 1 || q.Threads > peerThreads:
		return fmt.Errorf("port %d, %d threads: want a port, and 1 to %d threads", q.Port, q.Threads, peerThreads)
	case q.Milliseconds < 0 || q.Milliseconds > peerLength.Milliseconds() || !(q.Number >= 0 && q.Number <= peerNumber):
		return fmt.Errorf("%d ms, number %g: at most %v, and 0 to %g", q.Milliseconds, q.Number, peerLength, peerNumber)
	}
	return nil
}

func peerCommand() *cobra.Command {
	var listen, tokenFile string
	cmd := &cobra.Command{
		Use:   "peer",
		Short: "Run the client of `kerb bench responder --peer` on this machine",
		Long: "Waits for `kerb bench responder --peer` on another machine, and runs its client here, on all CPUs. The " +
			"client sends requests\nonly to that machine, which must present the token. The token crosses the network " +
			"unencrypted: do not use it for anything else.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			token, err := readToken(tokenFile)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if ctx == nil {
				ctx = context.Background()
			}
			return servePeer(ctx, listen, token, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address and port to listen on")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token, the same on both machines")
	_ = cmd.MarkFlagRequired("listen") // fails for unknown flags only
	_ = cmd.MarkFlagRequired("token-file")
	return cmd
}

// readToken reads a token from a file with one line.
func readToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < shortToken || strings.ContainsAny(token, " \n") {
		return "", fmt.Errorf("token in %s: want one line of at least %d characters, such as of `openssl rand -hex 16`",
			path, shortToken)
	}
	return token, nil
}

// servePeer serves until the context ends.
func servePeer(ctx context.Context, listen, token string, log io.Writer) (err error) {
	t, err := compilePeer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "listening on %s\n", listener.Addr())
	var serving sync.WaitGroup // clients exit before this program
	defer serving.Wait()
	handler := newPeer(token, t, exec.CommandContext)
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			serving.Add(1)
			defer serving.Done()
			handler.ServeHTTP(w, r)
		})}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// compilePeer compiles the client, and assigns all CPUs to it.
func compilePeer(ctx context.Context) (t *tools, err error) {
	t = &tools{}
	if t.clients, err = bench.CPUs(); err == nil {
		t.Programs, err = bench.Compile(ctx, nil, files, sources[0])
	}
	return t, err
}

// peer runs the client, one at a time, as an HTTP handler.
type peer struct {
	token   string
	tools   *tools
	command func(context.Context, string, ...string) *exec.Cmd
	running sync.Mutex
}

func newPeer(token string, t *tools, command func(context.Context, string, ...string) *exec.Cmd) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+askPath, &peer{token: token, tools: t, command: command})
	return mux
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given := []byte(r.Header.Get("Authorization"))
	if subtle.ConstantTimeCompare(given, []byte("Bearer "+p.token)) != 1 {
		w.Header().Set("Connection", "close")
		http.Error(w, "the token differs from that of --token-file on the peer", http.StatusUnauthorized)
		return
	}
	var q peerRequest
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestSize))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&q)
	if err == nil {
		err = q.check()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	server, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !server.Addr().Unmap().Is4() {
		http.Error(w, "the client speaks IPv4 only: use an IPv4 address for --peer", http.StatusBadRequest)
		return
	}
	if !p.running.TryLock() {
		http.Error(w, "this peer is in use by another benchmark", http.StatusConflict)
		return
	}
	defer p.running.Unlock()
	out, err := p.run(r.Context(), server.Addr().Unmap(), q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(peerReply{Answer: out, Machine: bench.ThisMachine(),
		CPUs: len(p.tools.clients)}) // the other side detects truncated replies
}

func (p *peer) run(ctx context.Context, server netip.Addr, q peerRequest) (json.RawMessage, error) {
	cpus := list(p.tools.clients)
	cmd := p.command(ctx, p.tools.Path("client"), q.Mode, q.Protocol, server.String(), strconv.Itoa(q.Port), cpus, cpus,
		strconv.Itoa(q.Threads), strconv.FormatInt(q.Milliseconds, 10), strconv.FormatFloat(q.Number, 'f', -1, 64), "0")
	out, err := cmd.Output()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		return nil, fmt.Errorf("client: %w: %s", err, exit.Stderr)
	}
	return out, err
}
