// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"go.yaml.in/yaml/v3"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

const examples = "../../deploy/examples/"

// composed returns the containers of the examples' compose file, with their labels.
func composed(t *testing.T) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile(examples + "containers/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Image   string
			Runtime string
			Labels  map[string]string
			Ports   []string
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	labels := map[string]map[string]string{}
	for name, s := range file.Services {
		labels[name] = s.Labels
	}
	return labels
}

// firewalls returns the example's modules for them, by name.
func firewalls(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(examples + "containers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	modules := map[string]any{}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m map[string]any
		if decoder.Decode(&m) != nil {
			return modules
		}
		modules[fmt.Sprint(m["metadata"].(map[string]any)["name"])] = m
	}
}

// Containers with the names and labels of the compose file get the modules of the example: each the one with its name.
func TestCompose(t *testing.T) {
	containers, modules := composed(t), firewalls(t)
	if len(containers) == 0 || len(containers) != len(modules) {
		t.Fatalf("containers %v, modules %v", containers, modules)
	}
	m := newMachine(t, "podman", "--fail-closed", "--timeout", "60s")
	m.Start()
	var services []string
	for name, labels := range containers {
		m.Apply(modules[name])
		var args []string
		for key, value := range labels {
			args = append(args, "--label", key+"="+value)
		}
		m.run(name, args...)
		services = append(services, "podman-"+name)
	}
	for name := range m.awaitServices(services...) {
		var s v1.Service
		m.Must("GET", "/v1/services/"+name, nil, &s)
		for _, hook := range s.Status.Links[0].Hooks {
			if want := name[len("podman-"):]; fmt.Sprint(hook.Modules) != "["+want+"]" {
				t.Errorf("%s of %s has modules %v, want %s alone", hook.Hook, name, hook.Modules, want)
			}
		}
		if len(s.Status.Links[0].Hooks) != 2 {
			t.Errorf("hooks of %s: %+v", name, s.Status.Links[0].Hooks)
		}
	}
}
