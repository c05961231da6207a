// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"maps"
	"reflect"
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

// Names of services are unique, have valid characters, and stay while the container runs.
func TestNames(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	all := byID(some("a"+id, "Web_1", 1, nil), some("b"+id, "web-1", 2, nil),
		some("c"+id, strings.Repeat("x", 200), 3, nil),
		some("d"+id, strings.Repeat("x", 201), 4, nil), some("e"+id, "é.", 5, nil))
	got, problems := translate("docker", all, nil, true)
	var names []string
	for _, s := range got {
		names = append(names, s.Metadata.Name)
		if len(s.Metadata.Name) > maxName || strings.Trim(s.Metadata.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("%q is no name of a service", s.Metadata.Name)
		}
	}
	if len(slices.Compact(names)) != len(all) || !slices.Contains(names, "docker-web-1") ||
		!slices.Contains(names, "docker-web-1-b0123456789a") || len(problems) != 0 {
		t.Errorf("names %q, problems %v", names, problems)
	}
	delete(all, "a"+id)
	again, _ := translate("docker", all, presentOf(got), true)
	for _, s := range again {
		if was := presentOf(got)[s.Spec].name; was != s.Metadata.Name {
			t.Errorf("%+v has another name, once another container has ended", s)
		}
	}
}

// Labels that are not valid in selectors, that have Kerb's prefix, or beyond 64 are omitted.
func TestLabels(t *testing.T) {
	labels := map[string]string{"app": "web", "com.docker.compose.project": "shop", "kerb.dev/runtime": "x",
		"two words": "x", "value": "two words", "long": strings.Repeat("x", 64), "": "x", "\x1b[2J": "x"}
	got, problems := translate("docker", byID(some("1", "web", 1, labels)), nil, true)
	want := map[string]string{"app": "web", "com.docker.compose.project": "shop", labelFrom: "docker", labelName: "web",
		labelBy: byEvents}
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
	got, problems = translate("docker", byID(some("1", "web", 1, many)), nil, true)
	if n := len(got[0].Metadata.Labels); n != maxLabels+3 || !strings.Contains(problems["1"], "and 926 more") {
		t.Errorf("%d labels, %q", n, problems["1"])
	}
}

// A container without its own network is not a service, nor is one that has ended.
func TestOthersNetworks(t *testing.T) {
	for _, mode := range []string{"host", "none", "container:abc", "ns:/run/netns/x"} {
		c := some("1", "web", 1, nil)
		c.HostConfig.NetworkMode = mode
		if got, _ := translate("docker", byID(c), nil, true); len(got) != 0 {
			t.Errorf("%s: %v", mode, got)
		}
	}
	for _, mode := range []string{"default", "bridge", "shop_default", "slirp4netns:mtu=1500", "bridge:ip=10.88.0.9"} {
		c := some("1", "web", 1, nil)
		c.HostConfig.NetworkMode = mode
		if got, _ := translate("docker", byID(c), nil, true); len(got) != 1 || got[0].Spec.PID != 1 {
			t.Errorf("%s: %v", mode, got)
		}
	}
	if got, _ := translate("docker", byID(some("1", "web", 0, nil)), nil, true); len(got) != 0 {
		t.Errorf("without a process: %v", got)
	}
}

// Containers of containerd have names in their namespace, and ids that may be equal in different namespaces.
func TestNamespaces(t *testing.T) {
	all := map[string]container{}
	for i, id := range []string{"default/web", "shop/web", "shop-web/a", "shop/web-a"} {
		c := some(id, id[strings.Index(id, "/")+1:], i+1, nil)
		c.Namespace = id[:strings.Index(id, "/")]
		all[id] = c
	}
	got, _ := translate("containerd", all, nil, true)
	names := map[string]string{}
	for _, s := range got {
		names[s.Metadata.Name] = s.Metadata.Labels[labelSpace]
	}
	if len(names) != len(all) || names["containerd-web"] != "default" || names["containerd-shop-web"] != "shop" {
		t.Errorf("services of namespaces: %v", names)
	}
}

// While the running containers are incomplete, the name of a service is not free for another container.
func TestIncomplete(t *testing.T) {
	before, _ := translate("docker", byID(some("a", "web.1", 1, nil)), nil, true)
	next := byID(some("b", "web-1", 2, nil))
	for complete, want := range map[bool]string{true: "docker-web-1", false: "docker-web-1-b"} {
		if got, _ := translate("docker", next, presentOf(before), complete); got[0].Metadata.Name != want {
			t.Errorf("complete %v: name %s, want %s", complete, got[0].Metadata.Name, want)
		}
	}
	next = byID(some("b", "web.1", 2, nil)) // created again under its name
	if got, _ := translate("docker", next, presentOf(before), false); got[0].Metadata.Name != "docker-web-1" {
		t.Errorf("a container has another name after a restart: %s", got[0].Metadata.Name)
	}
}

// Containers that share a network namespace by its path are one service.
func TestSharedPath(t *testing.T) {
	a, b := some("a", "a", 1, nil), some("b", "b", 2, nil)
	a.NetworkSettings.SandboxKey, b.NetworkSettings.SandboxKey = "/proc/self/ns/net", "/proc/self/ns/net"
	if got, _ := translate("containerd", byID(a, b), nil, true); len(got) != 1 || got[0].Spec.Netns == "" {
		t.Errorf("%v", got)
	}
}

// A service that a hook has created by process id stays unchanged when the runtime reports the path of its namespace,
// and still counts as found by the hook.
func TestHookStays(t *testing.T) {
	c := some("1", "web", 4711, nil)
	c.hook = true
	before, _ := translate("docker", byID(c), nil, true)
	c.hook, c.NetworkSettings.SandboxKey = false, "/proc/self/ns/net"
	after, _ := translate("docker", byID(c), presentOf(before), true)
	if !reflect.DeepEqual(after, before) || before[0].Metadata.Labels[labelBy] != byHook || before[0].Spec.PID != 4711 {
		t.Errorf("%+v, and then %+v", before, after)
	}
}
