// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func some(id, name string, pid int, labels map[string]string) container {
	c := container{ID: id, Name: "/" + name}
	c.State.Running, c.State.Pid, c.Config.Labels, c.HostConfig.NetworkMode = true, pid, labels, "bridge"
	return c
}

func byID(all ...container) map[string]container {
	out := map[string]container{}
	for _, c := range all {
		out[c.ID] = c
	}
	return out
}

// Names of services are distinct, of the characters that names have, and stay while the container runs.
func TestNames(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	all := byID(some("a"+id, "Web_1", 1, nil), some("b"+id, "web-1", 2, nil),
		some("c"+id, strings.Repeat("x", 200), 3, nil),
		some("d"+id, strings.Repeat("x", 201), 4, nil), some("e"+id, "é.", 5, nil))
	got, problems := translate("docker", all, nil)
	var names []string
	for _, s := range got {
		names = append(names, s.Metadata.Name)
		if len(s.Metadata.Name) > mostName || strings.Trim(s.Metadata.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("%q is no name of a service", s.Metadata.Name)
		}
	}
	if len(slices.Compact(names)) != len(all) || !slices.Contains(names, "docker-web-1") ||
		!slices.Contains(names, "docker-web-1-b0123456789a") || len(problems) != 0 {
		t.Errorf("names %q, problems %v", names, problems)
	}
	delete(all, "a"+id)
	again, _ := translate("docker", all, namesOf(got))
	for _, s := range again {
		if was := namesOf(got)[s.Spec]; was != s.Metadata.Name {
			t.Errorf("%+v has another name, once another container has ended", s)
		}
	}
}

// Labels that no selector can name, that are Kerb's own, or more than 64 are left out.
func TestLabels(t *testing.T) {
	labels := map[string]string{"app": "web", "com.docker.compose.project": "shop", "kerb.dev/runtime": "x",
		"two words": "x", "value": "two words", "long": strings.Repeat("x", 64), "": "x", "\x1b[2J": "x"}
	got, problems := translate("docker", byID(some("1", "web", 1, labels)), nil)
	want := map[string]string{"app": "web", "com.docker.compose.project": "shop", labelFrom: "docker", labelName: "web"}
	if len(got) != 1 || !maps.Equal(got[0].Metadata.Labels, want) {
		t.Errorf("labels %v", got)
	}
	if p := problems["1"]; !strings.Contains(p, `"two words"`) || strings.Contains(p, "\x1b") {
		t.Errorf("problems: %q", p)
	}
	many := map[string]string{}
	for i := range 1000 {
		many[fmt.Sprintf("label-%04d", i)] = strings.Repeat("v", 63)
	}
	got, problems = translate("docker", byID(some("1", "web", 1, many)), nil)
	if n := len(got[0].Metadata.Labels); n != mostLabels+2 || !strings.Contains(problems["1"], "and 926 more") {
		t.Errorf("%d labels, %q", n, problems["1"])
	}
}

// A container without a network of its own is no service, nor is one that has ended.
func TestOthersNetworks(t *testing.T) {
	for _, mode := range []string{"host", "none", "container:abc", "ns:/run/netns/x"} {
		c := some("1", "web", 1, nil)
		c.HostConfig.NetworkMode = mode
		if got, _ := translate("docker", byID(c), nil); len(got) != 0 {
			t.Errorf("%s: %v", mode, got)
		}
	}
	for _, mode := range []string{"default", "bridge", "shop_default", "slirp4netns:mtu=1500", "bridge:ip=10.88.0.9"} {
		c := some("1", "web", 1, nil)
		c.HostConfig.NetworkMode = mode
		if got, _ := translate("docker", byID(c), nil); len(got) != 1 || got[0].Spec.PID != 1 {
			t.Errorf("%s: %v", mode, got)
		}
	}
	if got, _ := translate("docker", byID(some("1", "web", 0, nil)), nil); len(got) != 0 {
		t.Errorf("without a process: %v", got)
	}
}
