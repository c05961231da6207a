// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/cli"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/server/servertest"
	"github.com/kerb-edge/kerb/internal/store"
)

// Every command that supports -o json prints only JSON, or fails without output; all others reject it before they do
// anything.
func TestNoCommandIgnoresTheOutput(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("KERB_SOCKET", startAgent(t))
	printed := 0
	for _, path := range runnable(cli.Root(build()), nil) {
		out, refused := runAsJSON(t, path)
		if refused {
			continue
		}
		n, err := values(out)
		if err != nil {
			t.Errorf("%s -o json printed %q: %v", strings.Join(path, " "), out, err)
		}
		if n > 0 {
			printed++
		}
	}
	if printed < 15 { // the others have nothing to report here
		t.Errorf("only %d commands printed something", printed)
	}
}

// startAgent serves a node without a kernel, with a module and a service of the name in the commands' arguments.
func startAgent(t *testing.T) (socket string) {
	t.Helper()
	c := config.Default()
	c.Paths.State, c.Paths.Run = t.TempDir(), t.TempDir()
	s, err := store.Open(c.Paths.Store())
	if err != nil {
		t.Fatal(err)
	}
	fake := servertest.New(s)
	m, service := v1alpha1.Module{Spec: v1alpha1.ModuleSpec{Package: "counter"}}, v1alpha1.Service{}
	m.Metadata.Name, service.Metadata.Name = name, name
	if _, err := fake.Apply(t.Context(), resource.Request{Resources: []resource.Object{&m, &service}}); err != nil {
		t.Fatal(err)
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- server.Run(ctx, c, fake, slog.New(slog.DiscardHandler), func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Error(err)
		}
	})
	<-ready
	return c.Paths.Socket()
}

// runnable returns all commands except those that pass their arguments to other programs.
func runnable(c *cobra.Command, path []string) (out [][]string) {
	for _, sub := range c.Commands() {
		below := append(path[:len(path):len(path)], sub.Name())
		if sub.Runnable() && !sub.DisableFlagParsing {
			out = append(out, below)
		}
		out = append(out, runnable(sub, below)...)
	}
	return out
}

const name = "x"

// runAsJSON runs a command with as many arguments as it accepts, isolated from the directories of a real agent.
func runAsJSON(t *testing.T, path []string) (out []byte, refused bool) {
	t.Helper()
	root := cli.Root(build())
	c, _, err := root.Find(path)
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for c.Args != nil && c.Args(c, args) != nil && len(args) < 4 {
		args = append(args, []string{name, name + "=1"}[min(len(args), 1)])
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Name == "config":
			args = append(args, "--config="+os.DevNull)
		case f.Name == "state" || f.Name == "run" || f.Name == "bpf":
			args = append(args, "--"+f.Name+"="+filepath.Join(t.TempDir(), f.Name))
		case f.Name == "netns":
			args = append(args, "--netns=/run/netns/x")
		}
	})
	var text bytes.Buffer
	root.SetArgs(append(append(path[:len(path):len(path)], args...), "-o", "json"))
	root.SetOut(&text)
	root.SetErr(io.Discard)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // some run until they are terminated
	defer cancel()
	err = root.ExecuteContext(ctx)
	return text.Bytes(), err != nil && strings.HasSuffix(err.Error(), "omit -o")
}

// values counts the JSON values in a text.
func values(text []byte) (n int, err error) {
	for d := json.NewDecoder(bytes.NewReader(text)); ; n++ {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}
