// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// What a control plane reports about itself is bounded, whatever it answers; what is left out is logged once.
func TestHealthAnswerIsBounded(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	answer := sdk.HealthAnswer{Conditions: []sdk.Condition{
		{Type: "Fuse", Status: "False", Reason: "Blown", Message: long},
		{Type: "Fuse", Status: "True", Reason: "Intact"},
		{Type: "Ready", Status: "False", Reason: "Lie"},
		{Type: "ControlPlane", Status: "False", Reason: "Lie"},
		{Type: "Odd", Status: long, Reason: "Odd"},
		{Type: "Odd\x1b[2J", Status: "True", Reason: "Odd"},
		{Type: "Odd", Status: "True", Reason: strings.Repeat("R", 65)},
		{Type: "", Status: "True", Reason: "Odd"},
	}, Ejected: []sdk.EjectedInstance{{Service: "web", Instance: "web-1", Reason: long},
		{Service: long[:1000], Instance: "web-1"}}}
	for i := range 500 {
		answer.Conditions = append(answer.Conditions, sdk.Condition{Type: fmt.Sprint("T", i), Status: "False", Reason: "R"})
	}
	for i := range 2 * maxEjected {
		answer.Ejected = append(answer.Ejected, sdk.EjectedInstance{Service: "web", Instance: fmt.Sprint(i)})
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "health") {
				_ = json.NewEncoder(w).Encode(answer)
			}
		}))
		var log bytes.Buffer
		p := testSupervisor(func() (*run, error) { return f.run, nil })
		p.log = slog.New(slog.NewTextHandler(&log, nil))
		go p.supervise()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		s := p.State()
		p.Close()
		if !s.Healthy || len(s.Conditions) != maxConditions || s.Conditions[0].Type != "Fuse" ||
			s.Conditions[1].Type != "T0" || len(s.Ejected) != maxEjected || s.Ejected[1].Instance != "0" {
			t.Fatalf("healthy: %t, %d conditions, %d ejected", s.Healthy, len(s.Conditions), len(s.Ejected))
		}
		for _, text := range []string{s.Conditions[0].Message, s.Ejected[0].Reason} {
			if len(text) > maxText+3 || !strings.HasPrefix(text, "éé") {
				t.Errorf("a text has %d bytes", len(text))
			}
		}
		if n := strings.Count(log.String(), "is ignored"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// The reason of one that is not well is bounded, too.
func TestHealthReasonIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(map[string]string{"reason": strings.Repeat("x", 1<<20)})
		}))
		p := testSupervisor(func() (*run, error) { return f.run, nil })
		go p.supervise()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		s := p.State()
		p.Close()
		if s.Healthy || !strings.Contains(s.Reason, "xxx") || len(s.Reason) > maxText+3 {
			t.Errorf("healthy: %t, a reason of %d bytes", s.Healthy, len(s.Reason))
		}
	})
}
