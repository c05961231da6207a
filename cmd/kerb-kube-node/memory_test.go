// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const (
	manyPods  = 5000
	maxMemory = 20 << 10 // KiB
)

// metadata is like that of a pod of a Deployment, with fields that are not used.
func metadata(kind, namespace, name, uid string, version int) string {
	return fmt.Sprintf(`{"kind":%q,"apiVersion":"meta.k8s.io/v1","metadata":{"name":%q,"namespace":%q,"uid":%q,`+
		`"resourceVersion":"%d","labels":{"app.kubernetes.io/name":"shop","app.kubernetes.io/component":"cart-%d",`+
		`"app.kubernetes.io/part-of":"retail","pod-template-hash":"5d8f7c9b6d","tier":"edge"},"annotations":{"a":%q},`+
		`"managedFields":[{"manager":"kubelet","operation":"Update","fieldsV1":{"f:status":%q}}]}}`,
		kind, name, namespace, uid, version, version%100, strings.Repeat("x", 300), strings.Repeat("y", 1500))
}

func podUID(i int) string { return fmt.Sprintf("0f2a7c1e-5b1d-4c7e-9f3a-%012d", i) }

// apiServer answers all watches with their initial events, and then nothing more.
func apiServer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") == "" {
		http.Error(w, "{}", http.StatusNotFound)
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/pods"):
		for i := range manyPods {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", metadata("PartialObjectMetadata",
				fmt.Sprintf("team-%d", i%200), fmt.Sprintf("cart-%d-5d8f7c9b6d-%05d", i%100, i), podUID(i), i+1))
		}
	case strings.HasSuffix(r.URL.Path, "/namespaces"):
		for i := range 200 {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n",
				metadata("PartialObjectMetadata", "", fmt.Sprintf("team-%d", i), fmt.Sprint("n", i), i+1))
		}
	}
	fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9000",`+
		`"annotations":{"k8s.io/initial-events-end":"true"}}}}`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// startAgent runs a double of the agent with a service for every pod.
func startAgent(t *testing.T) (socket string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/services", func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		separator := "["
		for i := range manyPods {
			pod := names.Pod{UID: podUID(i)}
			fmt.Fprintf(w, `%s{"kind":"Service","metadata":{"name":%q,"owner":%q,"resourceVersion":"%d","labels":{`+
				`"kerb.dev/namespace":"team-%d","app.kubernetes.io/name":"shop","app.kubernetes.io/component":"cart-%d",`+
				`"app.kubernetes.io/part-of":"retail","pod-template-hash":"5d8f7c9b6d","tier":"edge"}},`+
				`"spec":{"netns":"/run/netns/cni-%d"},"status":{"links":[{"interface":"veth%d","ifindex":%d,"mtu":1500}]}}`,
				separator, pod.Service(), names.OwnerPods, i, i%200, (i+1)%100, i, i, i)
			separator = ","
		}
		fmt.Fprint(w, "]")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if answer := map[string]string{"/v1/modules": "[]", "/v1/status": "{}", "/v1/apply": "{}"}[r.URL.Path]; answer != "" {
			fmt.Fprint(w, answer)
			return
		}
		t.Errorf("the agent is asked for %s", r.URL)
	})
	socket = filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return socket, asked
}

// With 5,000 pods on its node, the program takes at most 20 MB, as the kernel counts resident memory.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "kerb-kube-node")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	api := httptest.NewUnstartedServer(http.HandlerFunc(apiServer))
	api.EnableHTTP2 = true
	api.Config.ErrorLog = log.New(io.Discard, "", 0)
	api.StartTLS()
	defer api.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], users: [{name: u}],\n" +
		"clusters: [{name: c, cluster: {server: '" + api.URL + "', certificate-authority-data: " +
		base64.StdEncoding.EncodeToString(authority) + "}}]}"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, asked := startAgent(t)
	cmd := exec.Command(program, "--node", "n1", "--kubeconfig", kubeconfig, "--agent", socket, "--state", dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	wait.Until(t, "the snapshot has all pods", func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "kubernetes.json"))
		return strings.Count(string(text), "pod-template-hash") >= manyPods
	})
	before := asked.Load()
	wait.Until(t, "all services were read twice more", func() bool { return asked.Load() >= before+2 })
	used := memory(t, cmd.Process.Pid, "VmRSS")
	t.Logf("with %d pods: %d KiB resident, %d KiB of them anonymous, at most %d KiB since the start", manyPods, used,
		memory(t, cmd.Process.Pid, "RssAnon"), memory(t, cmd.Process.Pid, "VmHWM"))
	if used > maxMemory {
		t.Errorf("%d KiB are resident, want at most %d", used, maxMemory)
	}
}

// memory reads a line of /proc/PID/status, in KiB.
func memory(t *testing.T, pid int, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in /proc/%d/status", name, pid)
	return 0
}
