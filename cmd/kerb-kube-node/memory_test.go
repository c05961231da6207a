// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/x509"
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
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/nritest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const (
	manyPods  = 5000
	maxMemory = 18 << 10 // KiB
	maxPeak   = 19_531   // KiB, during the start; the goal is 20 MB

	manyServices      = 1000     // with five endpoints each
	maxMemoryServices = 20 << 10 // KiB, also during the start
)

// metadata returns the metadata of a Deployment's pod, including unused fields.
func metadata(kind, namespace, name, uid string, version int) string {
	return fmt.Sprintf(`{"kind":%q,"apiVersion":"meta.k8s.io/v1","metadata":{"name":%q,"namespace":%q,"uid":%q,`+
		`"resourceVersion":"%d","labels":{"app.kubernetes.io/name":"shop","app.kubernetes.io/component":"cart-%d",`+
		`"app.kubernetes.io/part-of":"retail","pod-template-hash":"5d8f7c9b6d","tier":"edge"},"annotations":{"a":%q},`+
		`"managedFields":[{"manager":"kubelet","operation":"Update","fieldsV1":{"f:status":%q}}]}}`,
		kind, name, namespace, uid, version, version%100, strings.Repeat("x", 300), strings.Repeat("y", 1500))
}

// endpointsOf returns the endpoints of a Service.
func endpointsOf(i int) (all []string) {
	for e := range 5 {
		all = append(all, fmt.Sprintf(`{"addresses":["10.%d.%d.%d"],"conditions":{"ready":true,"serving":true,`+
			`"terminating":false},"nodeName":"node-%d","targetRef":{"kind":"Pod","namespace":"team-%d","name":"cart-%d-%d",`+
			`"uid":%q}}`, e, i/250, i%250, i%100, i%200, i, e, podUID(5*i+e)))
	}
	return all
}

func podUID(i int) string { return fmt.Sprintf("0f2a7c1e-5b1d-4c7e-9f3a-%012d", i) }

// apiServer answers all watches with their initial events only. With proxy there is a ClusterModule of that package.
type apiServer struct{ proxy bool }

func (a apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") == "" {
		http.Error(w, "{}", http.StatusNotFound)
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/clustermodules") && a.proxy:
		fmt.Fprintln(w, `{"type":"ADDED","object":{"metadata":{"name":"px","uid":"m","resourceVersion":"1"},"spec":{`+
			`"package":{"name":"proxy"},"attach":{"pods":{}}}}}`)
	case strings.HasSuffix(r.URL.Path, "/services"):
		for i := range manyServices {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"metadata":{"name":"cart-%d","namespace":"team-%d","uid":"s%d",`+
				`"resourceVersion":"%d","annotations":{"a":%q}},"spec":{"clusterIPs":["10.96.%d.%d"],"type":"ClusterIP",`+
				`"ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":"web"}]}}}`+"\n", i, i%200, i, i+1,
				strings.Repeat("x", 300), i/250, i%250)
		}
	case strings.HasSuffix(r.URL.Path, "/endpointslices"):
		for i := range manyServices {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"metadata":{"name":"cart-%d-abcde","namespace":"team-%d","uid":"e%d",`+
				`"labels":{"kubernetes.io/service-name":"cart-%d"},"resourceVersion":"%d"},"addressType":"IPv4",`+
				`"ports":[{"name":"http","port":8080,"protocol":"TCP"}],"endpoints":[%s]}}`+"\n", i, i%200, i, i, i+1,
				strings.Join(endpointsOf(i), ","))
		}
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
func startAgent(t *testing.T) (socket string, asked, served *atomic.Int32) {
	t.Helper()
	asked, served = &atomic.Int32{}, &atomic.Int32{}
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
		if r.URL.Query().Get("owner") == names.OwnerServices {
			text, _ := io.ReadAll(r.Body)
			served.Store(int32(strings.Count(string(text), `"kind":"VirtualService"`)))
		}
		answers := map[string]string{"/v1/modules": "[]", "/v1/packages": "[]", "/v1/status": "{}", "/v1/apply": "{}"}
		if answer := answers[r.URL.Path]; answer != "" {
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
	return socket, asked, served
}

// With 5,000 pods on its node, the program has at most 18 MiB of resident memory, also after the container runtime has
// reported all of them; 20 MiB with the proxy and 1,000 Services of five endpoints. The limit applies to the median
// while it compares the agent's services. While it writes the snapshot, it takes more.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "kerb-kube-node")
	for _, name := range []string{"kerb-kube-node", "kerb-nri"} { // as released: with cgo, libc would be included
		if out, err := exec.Command("../../scripts/build", filepath.Join(dir, name), name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	running := make(chan struct{}, 2) // each test has the pods in several programs
	for name, c := range map[string]struct {
		with  uses
		limit int
	}{
		"pods":     {uses{}, maxMemory},
		"runtime":  {uses{nri: true}, maxMemory},
		"services": {uses{proxy: true}, maxMemoryServices},
		"metrics":  {uses{metrics: true}, maxMemory},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for timers of the program
			running <- struct{}{}
			defer func() { <-running }()
			testMemory(t, program, c.with, c.limit)
		})
	}
}

// uses are optional parts of the program.
type uses struct{ proxy, nri, metrics bool }

const scraper = "token-of-a-scraper-of-metrics"

// serving returns the flags for serving metrics, with the certificate of a test server, and a function that scrapes
// them.
func serving(t *testing.T, dir string, api *httptest.Server) (flags []string, scrape func()) {
	pair := api.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.2:0") // other servers of the test use ports of another address
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	flags = []string{"--metrics", address}
	for flag, data := range map[string][]byte{
		"certificate": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		"key":         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), "token": []byte(scraper)} {
		file := filepath.Join(dir, "metrics-"+flag)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--metrics-"+flag, file)
	}
	client := api.Client()
	client.Transport.(*http.Transport).TLSClientConfig.ServerName = "example.com" // the name in the certificate
	return flags, func() {
		r, err := http.NewRequest(http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+scraper)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), "kerb_kube_pods 5000\n") {
			t.Fatalf("%d %s, %v", answer.StatusCode, text, err)
		}
	}
}

// startRuntime runs a double of a container runtime with all pods.
func startRuntime(t *testing.T) (r *nritest.Runtime, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "nri")
	r = nritest.Start(t, socket)
	for i := range manyPods {
		name := fmt.Sprintf("cart-%d-5d8f7c9b6d-%05d", i%100, i)
		p := nritest.Pod(fmt.Sprintf("%064d", i), fmt.Sprintf("team-%d", i%200), name, podUID(i),
			map[string]string{"app.kubernetes.io/name": "shop", "tier": "edge",
				"app.kubernetes.io/component": fmt.Sprintf("cart-%d", (i+1)%100), "app.kubernetes.io/part-of": "retail",
				"pod-template-hash": "5d8f7c9b6d"})
		p.Annotations = map[string]string{"a": strings.Repeat("x", 300)}
		r.Add(p)
	}
	return r, socket
}

func testMemory(t *testing.T, program string, with uses, limit int) {
	dir := t.TempDir()
	api := httptest.NewUnstartedServer(apiServer{with.proxy})
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
	socket, asked, served := startAgent(t)
	cmd := exec.Command(program, "--node", "n1", "--kubeconfig", kubeconfig, "--agent", socket, "--state", dir)
	scrape := func() {}
	if with.metrics {
		var flags []string
		flags, scrape = serving(t, dir, api)
		cmd.Args = append(cmd.Args, flags...)
	}
	var runtime *nritest.Runtime
	if with.nri {
		var socket string
		runtime, socket = startRuntime(t)
		cmd.Args = append(cmd.Args, "--nri", socket)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	wait.Until(t, "the snapshot has all pods", func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "kubernetes.json"))
		return strings.Count(string(text), "pod-template-hash") >= manyPods
	})
	if with.proxy {
		wait.Until(t, "all Services are served", func() bool { return served.Load() == manyServices })
	}
	if with.nri {
		wait.Until(t, "the runtime has reported all pods", func() bool { return runtime.Synchronized() > 0 })
	}
	before := asked.Load()
	var samples []int
	wait.Until(t, "all services were read three times more", func() bool {
		scrape()
		samples = append(samples, memory(t, cmd.Process.Pid, "VmRSS"))
		return asked.Load() >= before+3
	})
	slices.Sort(samples)
	used := samples[len(samples)/2]
	t.Logf("with %d pods: %d KiB resident, %d KiB of them of files, at most %d KiB since the start", manyPods, used,
		memory(t, cmd.Process.Pid, "RssFile"), memory(t, cmd.Process.Pid, "VmHWM"))
	most := maxPeak
	if with.proxy {
		most = maxMemoryServices
	}
	if peak := memory(t, cmd.Process.Pid, "VmHWM"); !with.nri && !with.metrics && peak > most {
		t.Errorf("%d KiB were resident at most, want at most %d", peak, most)
	}
	if used > limit {
		t.Errorf("%d KiB are resident, want at most %d", used, limit)
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
