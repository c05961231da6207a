// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// recordings are all that were made of release v0.4.411, in the order of their making: each run started with an empty
// cluster. Those with a reason are not replayed.
var recordings = [][]struct{ name, reason string }{
	{{"01-register", ""}, {"02-register-again", ""}, {"03-deploy", ""}, {"04-deploy-errors", ""},
		{"05-query-service-ip", ""}, {"06-interest-expires", ""}, {"07-query-instance-ip", ""}, {"08-query-unknown", ""},
		{"09-interest-kept", ""}, {"10-second-instance", ""}, {"11-undeploy", ""}, {"12-move", ""}, {"13-move-back", ""},
		{"14-undeploy-last", ""}, {"15-redeploy", ""}, {"16-undeploy-of-hosted", ""}, {"17-broker-restart", ""},
		{"18-deploy-without-broker", ""}, {"19-query-unanswered", ""}, {"20-service-manager-restart", ""},
		{"21-remove-after-restart", ""}, {"25-address-reuse", ""}, {"26-deploy-twice", ""}, {"22-unikernel", ""},
		{"23-register-without-broker", ""},
		{"24-address-changed", "a message with a part of the name, which the cluster does not understand; 35 has the whole"}},
	{{"30-query-before-instance", ""}, {"31-query-before-address", ""}, {"32-net-manager-restart", ""},
		{"33-tcp-over-restart", ""}},
	{{"34-deployed-again", ""}, {"35-address-changed-whole-name", ""}, {"36-host-port", ""}},
	{{"40-ipv6", ""}, {"41-large", "packets only: TestPackets"}},
	{{"50-subnets-exhausted", ""}},
	{{"60-kerb-default", "a former Kerb in a worker's place"}, {"61-kerb-configured", "a former Kerb in a worker's place"},
		{"62-kerb-checksums", "packets of a former Kerb"}},
}

// line is a line of a recording: a message, a request of a component that the double does not simulate, or an action.
type line struct {
	From, To, Publish, Call, Note string
	Payload, Body                 object
	Again                         bool // the second of two equal notices, which the double does not send
}

func read(t *testing.T, name string) (all []line) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var l line
		_ = json.Unmarshal(s.Bytes(), &l) // responses of a network manager have a string as body
		all = append(all, l)
	}
	return all
}

// replay simulates the components around the real service managers.
type replay struct {
	*testing.T
	broker    *Broker
	cluster   *Cluster
	client    mqtt.Client
	answers   chan line
	want, got []line
	published int
	names     map[any]string // of services, by the root's ids
	numbers   map[string]int // of the instances to be scheduled next
}

func newReplay(t *testing.T, broker *Broker) *replay {
	r := &replay{T: t, broker: broker, cluster: NewCluster(t, broker), answers: make(chan line, 1000),
		names: map[any]string{}, numbers: map[string]int{}}
	r.client = mqtt.NewClient(mqtt.NewClientOptions().AddBroker(broker.URL()).
		SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
			var payload object
			if err := json.Unmarshal(m.Payload(), &payload); err != nil {
				t.Error(err)
			}
			r.answers <- line{Publish: m.Topic(), Payload: payload}
		}))
	if c := r.client.Connect(); c.Wait() && c.Error() != nil {
		t.Fatal(c.Error())
	}
	t.Cleanup(func() { disconnect(r.client) })
	r.client.SubscribeMultiple(map[string]byte{"nodes/+/net/tablequery/result": 1, "nodes/+/net/subnetwork/result": 1,
		"jobs/#": 1}, nil).Wait()
	return r
}

// A cluster of a finished test does not reply any more: the broker may be that of the next one.
func TestClusterEnds(t *testing.T) {
	b := NewBroker(t)
	b.Start()
	for range 20 {
		var c *Cluster
		t.Run("cluster", func(t *testing.T) { c = NewCluster(t, b) })
		if c.client.IsConnected() {
			t.Fatal("the cluster is still connected after the end of its test")
		}
	}
}

// TestRecordings replays the messages of the components around the real service managers. The double must reply as they
// did, after the same messages.
func TestRecordings(t *testing.T) {
	b := NewBroker(t)
	b.Start()
	for _, run := range recordings {
		t.Run(run[0].name, func(t *testing.T) {
			r := newReplay(t, b)
			all := r.before(run[0].name)
			for _, one := range run {
				if one.reason == "" {
					all = append(all, append(read(t, one.name), line{Note: one.name})...)
				}
			}
			for _, l := range all {
				r.step(l)
			}
		})
	}
}

// before returns the actions before a run, which are not in any recording.
func (r *replay) before(first string) (all []line) {
	const server, client = "app.ns.server.test", "app.ns.client.test"
	switch first {
	case "34-deployed-again":
		for _, name := range []string{"01-register", "03-deploy", "05-query-service-ip"} {
			all = append(all, append(read(r.T, name), line{Note: name})...)
		}
	case "30-query-before-instance":
		r.cluster.Create(server)
		r.cluster.Create(client)
		r.names["665000000000000000000001"] = server
		r.cluster.Schedule(client, 0)
		const w1, w2 = "nodes/6650000000000000000000d1/net/", "nodes/6650000000000000000000d2/net/"
		r.step(line{Publish: w1 + "subnet", Payload: object{"METHOD": "GET"}})
		r.step(line{Publish: w2 + "subnet", Payload: object{"METHOD": "GET"}})
		r.step(line{Publish: w2 + "service/deployed", Payload: object{
			"appname": client, "status": "DEPLOYED", "instance_number": 0, "nsip": "10.18.0.66", "nsipv6": "fc00::102",
			"host_port": "50103", "host_ip": "192.168.77.12"}})
		r.step(line{Publish: w2 + "tablequery/request", Payload: object{"sname": client}})
		r.await(func() bool { return len(r.got) == 4 })
		r.got = nil
	case "50-subnets-exhausted":
		r.cluster.Exhaust(true)
	}
	return all
}

func (r *replay) step(l line) {
	kind, path, _ := strings.Cut(l.Call, " ")
	parts := strings.Split(path, "/")
	switch {
	case l.Again:
	case l.From == "cluster-service-manager" && l.Publish != "":
		r.want = append(r.want, line{Publish: l.Publish, Payload: l.Payload})
		r.await(func() bool { return len(r.got) >= len(r.want) })
	case l.Publish != "":
		data, _ := json.Marshal(l.Payload)
		if p := r.client.Publish(l.Publish, 1, false, data); p.Wait() && p.Error() != nil {
			r.Fatal(p.Error())
		}
		r.published++
		r.await(func() bool { return len(r.cluster.Received()) == r.published })
	case l.Call == "POST /api/net/service/deploy":
		d := l.Body["deployment_descriptor"].(object)
		name := fmt.Sprintf("%v.%v.%v.%v", d["app_name"], d["app_ns"], d["service_name"], d["service_ns"])
		r.names[l.Body["_id"]] = name
		r.cluster.Create(name)
	case l.Call == "POST /api/net/instance/deploy":
		r.numbers[r.names[l.Body["_id"]]] = int(l.Body["instance_number"].(float64))
	case l.Call == "POST /api/net/deployment":
		name := l.Body["job_name"].(string)
		r.cluster.Schedule(name, r.numbers[name])
	case kind == "DELETE" && parts[3] == "service":
		r.cluster.Remove(r.names[parts[4]])
	case kind == "DELETE":
		var number int
		_, _ = fmt.Sscan(parts[4], &number)
		r.cluster.Undeploy(r.names[parts[3]], number)
	case l.Note == "cluster service manager is back":
		r.cluster.Restart()
	case l.Note != "":
		r.compare(l.Note)
		if r.cluster.Dead() { // by 21
			r.cluster.Restart()
		}
	}
}

func (r *replay) await(met func() bool) {
	r.Helper()
	wait.Until(r.T, "the double answers", func() bool {
		for len(r.answers) > 0 {
			r.got = append(r.got, <-r.answers)
		}
		return met()
	}, func() any {
		return fmt.Sprintf("connected: %v; %d messages published, received: %v; answers (-wanted, +got): %s",
			r.client.IsConnected(), r.published, r.cluster.Received(), cmp.Diff(r.want, r.got))
	})
}

// compare ends a recording. The order of the managers' replies to two messages of one worker is not compared.
func (r *replay) compare(name string) {
	order := func(a, b line) int { return strings.Compare(a.Publish, b.Publish) }
	slices.SortStableFunc(r.want, order)
	slices.SortStableFunc(r.got, order)
	if diff := cmp.Diff(r.want, r.got); diff != "" {
		r.Errorf("%s: recorded (-), double (+):\n%s", name, diff)
	}
	r.want, r.got = nil, nil
}

// TestRecordingsAreListed counts the recordings, and compares the list with the files.
func TestRecordingsAreListed(t *testing.T) {
	seen, replayed := map[string]bool{}, []string{}
	for _, run := range recordings {
		for _, one := range run {
			seen[one.name] = true
			if one.reason == "" {
				replayed = append(replayed, filepath.Join("testdata", one.name+".jsonl"))
			}
		}
	}
	files, err := filepath.Glob("testdata/*.jsonl")
	slices.Sort(replayed)
	if diff := cmp.Diff(files, replayed); diff != "" || err != nil {
		t.Errorf("files (-), listed as replayed (+): %v\n%s", err, diff)
	}
	if len(seen) != 39 {
		t.Errorf("%d recordings are listed, of 39", len(seen))
	}
}
