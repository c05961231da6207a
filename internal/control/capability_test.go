// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/sdk"
)

// provider provides all capabilities, and counts packet sockets and sockets for clients. The latter cannot be opened: a
// listener is nothing for a synctest bubble.
type provider struct{ opened, sockets int }

func (p *provider) Open(sdk.Attachment) (*os.File, error) {
	p.opened++
	return os.Open(os.DevNull)
}
func (*provider) Ended([]sdk.Attachment) []uint32 { return nil }

func (p *provider) options(t *testing.T) Options {
	dir := t.TempDir()
	return Options{
		Log:      quiet,
		Services: resolve.NewTable(quiet, filepath.Join(dir, "resolved")),
		Models:   models.NewTable(quiet),
		Packets:  p,
		ModuleSocket: func(string) string {
			p.sockets++
			return "/dev/null/m.sock"
		},
		Kernel: func(context.Context) sdk.Kernel { return sdk.Kernel{RoundTrips: []sdk.RoundTrip{{Bytes: 64}}} },
	}
}

// recorder answers every call, and keeps the names and bodies of the last ones.
type recorder struct {
	mu     sync.Mutex
	bodies map[string]string
}

func (c *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	name := strings.TrimPrefix(r.URL.Path, sdk.PathPrefix)
	c.mu.Lock()
	c.bodies[name] = string(body)
	c.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// A control plane gets what its manifest names, and nothing else of what the agent could provide.
func TestCapabilitiesAreNamed(t *testing.T) {
	for _, c := range []struct {
		named, calls []string
	}{
		{nil, []string{"start"}},
		{[]string{"virtualServices"}, []string{"start", "virtualservices", "wanted"}},
		{[]string{"models"}, []string{"models", "start"}},
		{[]string{"inject"}, []string{"start"}},
		{[]string{"arrivals"}, []string{"start", "wanted"}},
		{[]string{"clients"}, []string{"start", "wanted"}},
		{[]string{"kernelFacts"}, []string{"start"}},
	} {
		t.Run(strings.Join(c.named, " "), func(t *testing.T) {
			host, calls := &provider{}, &recorder{bodies: map[string]string{}}
			opts := host.options(t)
			synctest.Test(t, func(t *testing.T) { runFor10s(newNaming(t, opts, c.named, calls)) })
			delete(calls.bodies, "health")
			names := slices.Sorted(maps.Keys(calls.bodies))
			if !slices.Equal(names, c.calls) {
				t.Errorf("calls: %v, want %v", names, c.calls)
			}
			named := func(name string) bool { return slices.Contains(c.named, name) }
			if got := host.opened > 0; got != named("inject") {
				t.Errorf("packet sockets: %v", got)
			}
			if got := host.sockets > 0; got != named("clients") {
				t.Errorf("sockets for clients: %v", got)
			}
			if got := strings.Contains(calls.bodies["start"], `"kernel"`); got != named("kernelFacts") {
				t.Errorf("facts of the kernel: %v", got)
			}
		})
	}
}

// slowToAttach takes a while to note an attachment. It keeps the names of the calls, in the order of their ends.
type slowToAttach struct{ handler }

func (h *slowToAttach) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/attached") {
		time.Sleep(time.Second) // in the time of synctest
	}
	h.handler.ServeHTTP(w, r)
}

// A virtual service whose instance is in a service that was attached before it comes after that attachment.
func TestAttachmentsComeFirst(t *testing.T) {
	for _, answer := range []int{http.StatusNoContent, http.StatusInternalServerError} {
		opts, h := (&provider{}).options(t), &slowToAttach{handler{answers: map[string]int{
			"start": http.StatusNoContent, "virtualservices": http.StatusNoContent, "attached": answer}}}
		synctest.Test(t, func(t *testing.T) {
			p := newNaming(t, opts, []string{"virtualServices"}, h)
			time.AfterFunc(time.Second, func() {
				p.SetAttachments([]sdk.Attachment{{Service: "web", Interface: "v1", Ifindex: 8}})
				opts.Services.Apply([]v1.VirtualService{{Metadata: v1.ObjectMeta{Name: "web"}}}, nil)
			})
			runFor10s(p)
		})
		calls := slices.DeleteFunc(h.called(), func(name string) bool {
			return name != "attached" && name != "virtualservices"
		})
		// the first one is empty
		if !slices.Equal(calls[:min(3, len(calls))], []string{"virtualservices", "attached", "virtualservices"}) {
			t.Errorf("attached is answered by %d: %v", answer, calls)
		}
	}
}

// A control plane that answers that it has another map set gets the update again, at growing intervals.
func TestConflictsBackOff(t *testing.T) {
	opts, h := (&provider{}).options(t),
		&handler{answers: map[string]int{"start": http.StatusNoContent, "models": http.StatusConflict}}
	synctest.Test(t, func(t *testing.T) { runFor10s(newNaming(t, opts, []string{"models"}, h)) })
	n := 0
	for _, call := range h.called() {
		if call == "models" {
			n++
		}
	}
	if n != 16 { // 8 in the first 1.27 s, then one each second
		t.Errorf("sent %d times in 10 s, want 16", n)
	}
}

func packageNaming(capabilities ...string) *pkgs.Package {
	return &pkgs.Package{Manifest: pkgs.Manifest{Control: &pkgs.Control{}, Capabilities: capabilities}}
}

// newNaming is a control plane whose package names capabilities.
func newNaming(t *testing.T, opts Options, named []string, handler http.Handler) *Supervisor {
	p := newSupervisor("m", packageNaming(named...), opts, nil)
	p.start = func() (*run, error) {
		f := newFake(handler)
		f.run.maps = unread(t)
		return f.run, nil
	}
	p.want = &live{name: "live-1", attachments: []sdk.Attachment{{Service: "web", Interface: "v0", Ifindex: 7}}}
	return p
}

func runFor10s(p *Supervisor) {
	p.wake()
	go p.supervise()
	time.Sleep(10 * time.Second) // in the time of synctest; all calls have been made by then
	p.Close()
}

// The agent listens for clients of a control plane that has started.
func TestListensForClients(t *testing.T) {
	opts, path := (&provider{}).options(t), filepath.Join(t.TempDir(), "m.sock")
	opts.ModuleSocket = func(string) string { return path }
	p := newSupervisor("m", packageNaming("clients"), opts, nil)
	p.want = &live{name: "live-1"}
	there := func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
	p.maintain(&run{})
	if there() {
		t.Error("before the start")
	}
	p.startedWith = "live-1"
	p.maintain(&run{})
	if !there() {
		t.Error("not after the start")
	}
	for _, g := range grantsOf[ender](p) {
		g.end()
	}
	if there() {
		t.Error("after the end")
	}
}

// Every capability that a manifest can name is there, and no other.
func TestCapabilitiesAreInTheSchema(t *testing.T) {
	var schema struct {
		Properties struct {
			Capabilities struct{ Items struct{ Enum []string } }
		}
	}
	if err := json.Unmarshal(pkgs.ManifestSchema, &schema); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range capabilities {
		names = append(names, c.name)
	}
	if want := schema.Properties.Capabilities.Items.Enum; !slices.Equal(names, want) {
		t.Errorf("%v, and the schema has %v", names, want)
	}
}
