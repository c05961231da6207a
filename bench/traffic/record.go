// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/modules/classifier"
)

func recordCommand() *cobra.Command {
	var s settings
	var socket string
	var length time.Duration
	c := &cobra.Command{
		Use:   "record MODULE",
		Short: "Record the feature table of a running classifier",
		Long: "Writes the features of each window that the module evaluates, and its class if labels are given. The module " +
			"needs `events: all`\n" +
			"and a model, with any features. Recording ends after --for, or on Ctrl-C.",
		Example: "  kerb model record guard --for 10m --label attack=fe80::ff:fe00:2 -o windows.csv",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			agent := client.New(socket)
			extractor, window, err := recordable(cmd.Context(), agent, args[0])
			if err != nil {
				return err
			}
			s.options.Window = window
			l, err := parseLabels(s.normal, s.label, s.labels)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), length)
			defer cancel()
			return s.write(cmd, extractor, l, func(t *table) error { return record(ctx, agent, args[0], extractor, t) })
		},
	}
	f := c.Flags()
	f.StringVar(&socket, "socket", cmp.Or(os.Getenv("KERB_SOCKET"), paths.Default().Socket()),
		"socket of the agent; default from KERB_SOCKET")
	f.DurationVar(&length, "for", 10*time.Minute, "how long to record")
	f.StringVarP(&s.out, "output", "o", "", "file to write; standard output by default")
	s.addLabels(c)
	return c
}

func modulePath(name string) string { return "/v1/modules/" + url.PathEscape(name) }

// recordable returns extractor and window length of a module, or an error if it does not report each evaluation.
func recordable(ctx context.Context, agent *client.Client, name string) (string, time.Duration, error) {
	var m v1alpha1.Module
	if err := agent.Call(ctx, http.MethodGet, modulePath(name), nil, &m); err != nil {
		return "", 0, err
	}
	setting := func(name, otherwise string) string {
		if text, ok := m.Spec.Config[name].(string); ok {
			return text
		}
		return otherwise
	}
	if m.Spec.Package != "classifier" || setting("model", "") == "" || setting("events", "") != "all" {
		return "", 0, fmt.Errorf("module %s: cannot record its windows: it must use the package classifier, with a model "+
			"and events: all", name)
	}
	window, err := time.ParseDuration(setting("window", "5s"))
	return setting("extractor", "rpl"), window, err
}

// record adds the windows of a module to a table until ctx ends.
func record(ctx context.Context, agent *client.Client, name, extractor string, t *table) error {
	stream, err := agent.Stream(ctx, modulePath(name)+"/events")
	if err != nil {
		return err
	}
	defer stream.Close()
	for lines := json.NewDecoder(stream); ; {
		var v classifier.Verdict
		err := lines.Decode(&v)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("record module %s: the agent ended the stream of events", name)
		case err != nil:
			return fmt.Errorf("record module %s: %w", name, err)
		case v.Kind == "fuse":
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, v.Time)
		if err != nil {
			return fmt.Errorf("record module %s: %w", name, err)
		}
		w := Window{Time: uint64(at.UnixNano()), Source: v.Source}
		for _, f := range classifier.Features[extractor] {
			w.Values = append(w.Values, int64(v.Features[f]))
		}
		if err := t.add(w); err != nil {
			return err
		}
	}
}
