// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/validate/content"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Labels that every service of a container has.
const (
	labelPrefix = "kerb.dev/" // ignored in labels of containers, which could otherwise impersonate others
	labelName   = labelPrefix + "container"
	labelFrom   = labelPrefix + "runtime"
	labelSpace  = labelPrefix + "containerd-namespace"
	labelBy     = labelPrefix + "found-by" // hook or events
)

// Values of labelBy.
const (
	byHook   = "hook"   // before the container's first process
	byEvents = "events" // after it
)

const (
	maxLabels = 64 // of a container; further ones are omitted
	maxLogged = 10 // of the omitted ones
	maxName   = 63 // bytes of a service's name
)

// translate returns the services of containers with separate network namespaces, by name, and errors by container id.
// An existing service keeps its name until its network namespace ends: renaming would replace the service, and leave
// the container without its modules for a moment.
//
// If containers share a namespace, the service has the labels of the first one. If all is complete, names of services
// without a container are free.
func translate(from string, all map[string]container, there map[v1.ServiceSpec]present, complete bool) (
	services []v1.Service, problems map[string]string) {
	services, problems = []v1.Service{}, map[string]string{}
	taken, used := map[string]bool{}, map[v1.ServiceSpec]bool{}
	for _, service := range there {
		taken[service.name] = !complete
	}
	for _, c := range all {
		if spec, own := specOf(c, there); own && there[spec].name != "" {
			taken[there[spec].name] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		c := all[id]
		spec, own := specOf(c, there)
		if !own || used[spec] {
			continue
		}
		used[spec] = true
		labels, left := labelsOf(c)
		if len(left) > 0 {
			problems[id] = "ignored, as they are not valid labels of a service: " + strings.Join(left, ", ")
		}
		labels[labelFrom] = from
		if len(content.IsLabelValue(c.name())) == 0 {
			labels[labelName] = c.name()
		}
		if len(content.IsLabelValue(c.Namespace)) == 0 && c.Namespace != "" {
			labels[labelSpace] = c.Namespace
		}
		labels[labelBy] = byEvents
		if c.hook || there[spec].hook {
			labels[labelBy] = byHook
		}
		name := there[spec].name
		if name == "" && !complete {
			name = nameBefore(c, there)
		}
		if name == "" {
			name = nameOf(from, c, taken)
			taken[name] = true
		}
		services = append(services, v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
			Metadata: v1.ObjectMeta{Name: name, Labels: labels}, Spec: spec})
	}
	sort.Slice(services, func(i, j int) bool { return services[i].Metadata.Name < services[j].Metadata.Name })
	return services, problems
}

// present is an existing service.
type present struct {
	name      string
	hook      bool   // it was created before the container's first process
	container string // the runtime's name of the container; a slash if that is not a valid label
}

// title returns the runtime's name of a container from the labels of its service.
func title(labels map[string]string) string { return labels[labelSpace] + "/" + labels[labelName] }

// nameBefore returns the name of the service of a container's earlier run, or "".
func nameBefore(c container, there map[v1.ServiceSpec]present) string {
	for _, service := range there {
		if service.container == c.Namespace+"/"+c.name() {
			return service.name
		}
	}
	return ""
}

// specOf returns the location of the container's network, or false if it uses the network of the node or of another
// container, or only loopback. A service that a hook created by process id keeps that location when the runtime reports
// a path.
func specOf(c container, there map[v1.ServiceSpec]present) (v1.ServiceSpec, bool) {
	mode, _, shared := strings.Cut(c.HostConfig.NetworkMode, ":")
	switch {
	case mode == "host" || mode == "none" || shared && (mode == "container" || mode == "ns"):
		return v1.ServiceSpec{}, false
	case c.State.Pid > 0 && there[v1.ServiceSpec{PID: c.State.Pid}].hook:
	case isNamespace(c.NetworkSettings.SandboxKey):
		return v1.ServiceSpec{Netns: c.NetworkSettings.SandboxKey}, true
	}
	return v1.ServiceSpec{PID: c.State.Pid}, c.State.Pid > 0
}

// isNamespace reports whether a namespace is mounted at the path, as seen by this process: if mounts of the runtime do
// not propagate to the agent, the path is an empty file.
func isNamespace(path string) bool {
	var s unix.Statfs_t
	return path != "" && unix.Statfs(path, &s) == nil && s.Type == unix.NSFS_MAGIC
}

// labelsOf returns the labels of the container that are valid in selectors, and the keys of the omitted ones.
func labelsOf(c container) (labels map[string]string, left []string) {
	labels = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(c.Config.Labels)) {
		value := c.Config.Labels[key]
		switch {
		case strings.HasPrefix(key, labelPrefix), len(labels) == maxLabels, len(content.IsLabelKey(key)) > 0,
			len(content.IsLabelValue(value)) > 0:
			left = append(left, quoted(key))
		default:
			labels[key] = value
		}
	}
	if n := len(left) - maxLogged; n > 0 {
		left = append(left[:maxLogged], fmt.Sprintf("and %d more", n))
	}
	return labels, left
}

// quoted returns a text of a container's author for the log.
func quoted(text string) string { return fmt.Sprintf("%.80q", text) }

// nameOf returns a service name from the runtime and the container's name, without invalid characters. If another
// container has that name, the beginning of the id is added.
func nameOf(from string, c container, taken map[string]bool) string {
	name := from + "-" + c.name()
	if c.Namespace != "" && c.Namespace != defaultNamespace {
		name = from + "-" + c.Namespace + "-" + c.name()
	}
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	trim := func(length int) string { return strings.TrimRight(name[:min(length, len(name))], "-") }
	if short := trim(maxName); !taken[short] {
		return short
	}
	id := "-" + shortID(c)
	return trim(maxName-len(id)) + id
}

// shortID returns the short form of an id of Docker or Podman. Users choose containerd's ids, which may share prefixes.
func shortID(c container) string {
	if c.Namespace == "" {
		return c.ID[:min(12, len(c.ID))]
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(c.ID)))[:12]
}
