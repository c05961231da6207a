// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// At start on a node with many pods, their services are changed in batches of a few hundred: one request for all would
// take more memory than the rest of the program.
func TestManyPodsAreAdmitted(t *testing.T) {
	const pods = 2*maxServicesPerRequest + 7
	s := crowded(pods)
	s.namespaceHandler().Set(api.Object{Metadata: api.ObjectMeta{Name: "default"}})
	var services []v1.Service
	for i := range pods {
		p := names.Pod{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: uidOf(i)}
		services = append(services, v1.Service{Metadata: v1.ObjectMeta{Name: p.Service(), Owner: names.OwnerPods,
			Labels: names.PodLabels(p, names.Attachment{})}})
	}
	admitted, largest := map[string]bool{}, 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/services", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(services)
	})
	mux.HandleFunc("POST /v1/apply", func(w http.ResponseWriter, r *http.Request) {
		var all []v1.Service
		if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
			t.Error(err)
		}
		for _, service := range all {
			admitted[service.Metadata.Name] = !names.IsPending(service.Metadata.Labels)
		}
		largest = max(largest, len(all))
		_, _ = w.Write([]byte("{}"))
	})
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "agent"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: socket, Config: &http.Server{Handler: mux}}
	server.Start()
	t.Cleanup(server.Close)
	sync := &syncer{state: s, agent: agent{client.New(socket.Addr().String())}, log: slog.New(slog.DiscardHandler),
		await: map[string]time.Time{}}
	if err := sync.syncServices(t.Context(), s.view()); err != nil {
		t.Fatal(err)
	}
	if len(admitted) != pods || largest > maxServicesPerRequest {
		t.Errorf("%d of %d pods are admitted, at most %d by one request", len(admitted), pods, largest)
	}
	for name, done := range admitted {
		if !done {
			t.Errorf("%s is pending", name)
		}
	}
}

// largest is a writer that records the size of the largest write.
type largest int

func (l *largest) Write(p []byte) (int, error) {
	*l = max(*l, largest(len(p)))
	return len(p), nil
}

// The snapshot of many pods is written in small parts, and can be restored.
func TestManyPodsAreSaved(t *testing.T) {
	s := crowded(5000)
	head, pods, err := s.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var most largest
	if err := writeSnapshot(&most, head, pods); err != nil || most > 64<<10 {
		t.Errorf("one write has %d bytes: %v", most, err)
	}
	dir := t.TempDir()
	if err := s.save(dir); err != nil {
		t.Fatal(err)
	}
	next := newState("n1")
	if err := next.restore(dir); err != nil || len(next.pods) != len(s.pods) || len(next.namespaces) != 1 {
		t.Fatalf("%d pods, %d namespaces: %v", len(next.pods), len(next.namespaces), err)
	}
	for uid, p := range s.pods {
		p.version = 0 // of another start
		if next.pods[uid] != p {
			t.Fatalf("%+v, want %+v", next.pods[uid], p)
		}
	}
}

// While pods are listed, those with equal labels share one map.
func TestListedPodsShareLabels(t *testing.T) {
	share := newState("n1").podHandler().Share()
	maps := map[uintptr]bool{}
	for i := range 1000 {
		pod := podObject(i) // with 50 different labels
		share(&pod)
		if want := fmt.Sprint(i % 50); pod.Metadata.Labels["app"] != want {
			t.Fatalf("pod %d has labels %v", i, pod.Metadata.Labels)
		}
		maps[reflect.ValueOf(pod.Metadata.Labels).Pointer()] = true
	}
	if len(maps) != 50 {
		t.Errorf("%d maps of labels, want 50", len(maps))
	}
	many := podObject(1)
	many.Metadata.Labels = map[string]string{"a": strings.Repeat("x", maxLabelBytes)}
	many.Metadata.Annotations = &api.Annotations{Static: strings.Repeat("x", maxLabelBytes)}
	share(&many)
	if is := podOf(many.Metadata); !is.tooMany || is.static != "" || many.Metadata.Labels["a"] != "" ||
		many.Metadata.Annotations != nil {
		t.Errorf("unused fields of a pod are kept until the list is complete: %+v", is)
	}
}
