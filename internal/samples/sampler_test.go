// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
)

func discard(v1.HistoryLine) error { return nil }

// Who asks for a history that there is not learns why.
func TestNoHistory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	for want, s := range map[string]*Sampler{
		`add "history: {}" to the configuration`: OpenSampler("", log),
		"the history cannot be kept: ":           OpenSampler(filepath.Join(file, "samples"), log),
	} {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		s.Run(ended, func(*Readings) { t.Error("reads what it cannot keep") })
		err := s.History(t.Context(), v1.HistoryRequest{}, discard)
		var conflict *apierrors.Conflict
		if !errors.As(err, &conflict) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		s.Close()
	}
}

// A client that follows gets samples, of which the files keep one in ten; also when the history is off, and again after
// another client has gone.
func TestSamplerIsFollowed(t *testing.T) {
	for name, dir := range map[string]string{"history": t.TempDir(), "history off": ""} {
		t.Run(name, func(t *testing.T) {
			s := OpenSampler(dir, slog.Default())
			t.Cleanup(s.Close)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				s.Run(ctx, func(r *Readings) {
					r.Reset()
					r.AddAgent(3)
				})
			}()
			followOnce(t, s)
			followOnce(t, s)
			cancel()
			<-ended
		})
	}
}

// followOnce follows until there is a sample.
func followOnce(t *testing.T, s *Sampler) {
	t.Helper()
	var names []string
	enough := errors.New("enough")
	err := s.History(t.Context(), v1.HistoryRequest{Follow: true}, func(line v1.HistoryLine) error {
		for _, series := range line.Series {
			names = append(names, series.Name)
		}
		if len(line.Values) > 0 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || !strings.Contains(strings.Join(names, " "), "kerb_problems") {
		t.Errorf("%v, series %q", err, names)
	}
}
