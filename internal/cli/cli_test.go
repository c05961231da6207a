// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/server/servertest"
	"github.com/kerb-edge/kerb/internal/store"
)

// TestMain lets scripts run this program as kerb, with a real server and store and no kernel.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"kerb": func() { os.Exit(Main(Build{Version: "test", Agent: fakeAgent})) },
	})
}

func fakeAgent(ctx context.Context, c config.Config, log *slog.Logger) error {
	s, err := store.Open(c.Paths.Store())
	if err != nil {
		return err
	}
	defer s.Close()
	return server.Run(ctx, c, servertest.New(s), log, func() { log.Info("ready") })
}

// TestScripts runs testdata/*.txtar. The command `exits CODE COMMAND...` checks an exit code.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("KERB_SOCKET", filepath.Join(env.WorkDir, "run", "kerb.sock"))
			env.Setenv("TMPDIR", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "awaitsocket": awaitSocket,
			"awaitlog":     awaitLog,
			"certificates": certificates},
	})
}

// exits runs a program that must end with the given code, and not with success.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	if want := "exit status " + args[0]; err == nil || err.Error() != want {
		ts.Fatalf("%s: %v, want %s", strings.Join(args[1:], " "), err, want)
	}
}

// awaitSocket waits until the agent in the background responds.
func awaitSocket(ts *testscript.TestScript, _ bool, _ []string) {
	for range 500 {
		if ts.Exec("kerb", "status") == nil {
			return
		}
		if ts.Exec("sleep", "0.02") != nil {
			break
		}
	}
	ts.Fatalf("the agent did not start")
}

// awaitLog waits until agent.log has a matching line after the last match.
func awaitLog(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile(args[0])
	for range 500 {
		if pattern.MatchString(ts.ReadFile("agent.log")) {
			return
		}
		if ts.Exec("sleep", "0.02") != nil {
			break
		}
	}
	ts.Fatalf("no line of agent.log matches %s:\n%s", args[0], ts.ReadFile("agent.log"))
}

// certificates writes cert.pem and key.pem for an agent on 127.0.0.1, and sets PORT to a free port.
func certificates(ts *testscript.TestScript, _ bool, _ []string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	ts.Check(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	ts.Check(os.WriteFile(ts.MkAbs("key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	ts.Check(l.Close())
	ts.Setenv("PORT", port)
}

// TestEveryCommandIsDocumented keeps help texts and examples complete.
func TestEveryCommandIsDocumented(t *testing.T) {
	root := Root(Build{Version: "test"})
	walk(root, func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s says nothing of itself", c.CommandPath())
		}
		if !c.HasSubCommands() && c.Example == "" && !authored(c) {
			t.Errorf("%s has no example", c.CommandPath())
		}
		if c.RunE == nil && c.HasParent() {
			t.Errorf("%s does not return its errors", c.CommandPath())
		}
	})
}

// authored commands are those of package authors.
func authored(c *cobra.Command) bool {
	for _, other := range (&app{}).packageAuthorCommands() {
		if c.Parent().Name() == "package" && c.Name() == other.Name() {
			return true
		}
	}
	return false
}

// TestExamplesParse checks that every example in the help is a command line that exists, with flags that exist.
func TestExamplesParse(t *testing.T) {
	walk(Root(Build{Version: "test"}), func(c *cobra.Command) {
		for _, example := range regexp.MustCompile(`kerb [a-z]('[^'\n]*'|[^|&#>'\n])*`).FindAllString(c.Example, -1) {
			words := regexp.MustCompile(`('[^']*'|\S)+`).FindAllString(example, -1)
			if err := parses(words[1:]); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), example, err)
			}
		}
	})
}

func parses(args []string) error {
	root := Root(Build{Version: "test"})
	root.SetOut(io.Discard)
	c, rest, err := root.Find(args)
	if err != nil || c == root {
		return fmt.Errorf("no such command: %v", err)
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	return c.ValidateArgs(c.Flags().Args())
}

func walk(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{fmt.Errorf("unknown flag"), ExitUsage},
		{&runError{fmt.Errorf("file: %w", &apierrors.Invalid{Reason: "x"})}, ExitUsage},
		{&runError{&apierrors.NotFound{Kind: "Module", Name: "x"}}, ExitNotFound},
		{&runError{&unreachableError{"s", io.EOF}}, ExitUnreachable},
		{&runError{&apierrors.Conflict{}}, ExitConflict},
		{&runError{&apierrors.Rejected{}}, ExitConflict},
		{&runError{&apierrors.ReadOnly{}}, ExitFailure},
		{&runError{&apierrors.Unavailable{}}, ExitFailure},
		{&runError{io.EOF}, ExitFailure},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%#v: %d, want %d", c.err, got, c.want)
		}
	}
}

// A closed pipe of the output is not reported as an error; a closed connection is.
func TestNobodyReads(t *testing.T) {
	for name, want := range map[string]bool{os.Stdout.Name(): true, "/run/peer": false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := syscall.Dup(int(w.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		out := os.NewFile(uintptr(fd), name)
		r.Close()
		if _, err := fmt.Fprintln(out, "text"); isClosedPipe(err) != want {
			t.Errorf("%s: %v", name, err)
		}
		w.Close()
		out.Close()
	}
}
