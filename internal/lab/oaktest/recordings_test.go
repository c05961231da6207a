// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// line is one of a recording: a message, or a call of a part that the double does not play.
type line struct {
	From, Publish, Call string
	Payload, Body       object
}

func read(t *testing.T, name string) (all []line) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var l line
		_ = json.Unmarshal(s.Bytes(), &l) // responses of a network manager have a body that is text
		all = append(all, l)
	}
	return all
}

// TestRecordings replays what the parts around the real service managers sent. The double must answer as they did.
func TestRecordings(t *testing.T) {
	b := NewBroker(t)
	b.Start()
	c := NewCluster(t, b)
	answers := make(chan line, 100)
	client := mqtt.NewClient(mqtt.NewClientOptions().AddBroker(b.URL()).SetClientID("workers").
		SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
			var payload object
			if err := json.Unmarshal(m.Payload(), &payload); err != nil {
				t.Error(err)
			}
			answers <- line{Publish: m.Topic(), Payload: payload}
		}))
	client.Connect().Wait()
	defer client.Disconnect(0)
	client.SubscribeMultiple(map[string]byte{"nodes/+/net/tablequery/result": 1, "nodes/+/net/subnetwork/result": 1,
		"jobs/#": 1}, nil).Wait()
	workers := map[string]string{}
	for _, name := range []string{"01-register.jsonl", "03-deploy.jsonl", "04-deploy-errors.jsonl",
		"05-query-service-ip.jsonl", "06-interest-expires.jsonl", "07-query-instance-ip.jsonl", "08-query-unknown.jsonl"} {
		var want, got []line
		for _, l := range read(t, name) {
			switch {
			case l.From == "cluster-service-manager":
				want = append(want, line{Publish: l.Publish, Payload: l.Payload})
			case l.Publish != "":
				workers[l.From] = strings.Split(l.Publish, "/")[1]
				data, _ := json.Marshal(l.Payload)
				client.Publish(l.Publish, 1, false, data).Wait()
			case l.Call == "POST /api/net/service/deploy":
				d := l.Body["deployment_descriptor"].(object)
				c.Create(strings.Join([]string{d["app_name"].(string), d["app_ns"].(string), d["service_name"].(string),
					d["service_ns"].(string)}, "."))
			case l.Call == "POST /api/net/deployment":
				name := l.Body["job_name"].(string)
				c.Schedule(name, 0, workers[map[bool]string{true: "w1", false: "w2"}[strings.Contains(name, "server")]])
			}
		}
		wait.Until(t, "all answers of "+name, func() bool {
			for len(answers) > 0 {
				got = append(got, <-answers)
			}
			return len(got) >= len(want)
		})
		// The managers answer two messages of one worker in either order.
		order := func(a, b line) int { return strings.Compare(a.Publish, b.Publish) }
		slices.SortStableFunc(want, order)
		slices.SortStableFunc(got, order)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: recorded (-), double (+):\n%s", name, diff)
		}
	}
}
