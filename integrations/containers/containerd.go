// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// containerd is a client of containerd 1 and 2. It encodes only a few fields of a few messages, with the field numbers
// of containerd's api/services. Container ids are prefixed with their namespace.
type containerd struct{ grpc }

// foreignNamespaces are ignored: other integrations handle their containers, with labels.
var foreignNamespaces = map[string]string{"k8s.io": "kerb-kube-node", "moby": "runtime: docker"}

const (
	namespacesList  = "containerd.services.namespaces.v1.Namespaces/List"
	containersList  = "containerd.services.containers.v1.Containers/List"
	containersGet   = "containerd.services.containers.v1.Containers/Get"
	tasksList       = "containerd.services.tasks.v1.Tasks/List"
	tasksGet        = "containerd.services.tasks.v1.Tasks/Get"
	eventsSubscribe = "containerd.services.events.v1.Events/Subscribe"
)

// States of a task (containerd.v1.types.Status) with a network namespace and processes.
const taskRunning, taskPaused, taskPausing = 2, 4, 5

// defaultNamespace is the default of ctr and nerdctl, which is omitted in names of services.
const defaultNamespace = "default"

// nerdctlName is the label with the name that nerdctl shows.
const nerdctlName = "nerdctl/name"

func (c containerd) namespaces(ctx context.Context) (names []string, err error) {
	answer, _, err := c.call(ctx, namespacesList, "", nil)
	for _, message := range messages(answer, 1) {
		if name := text(message, 1); foreignNamespaces[name] == "" {
			names = append(names, name)
		}
	}
	return names, err
}

func (c containerd) running(ctx context.Context) (ids []string, err error) {
	namespaces, err := c.namespaces(ctx)
	for _, namespace := range namespaces {
		answer, _, err := c.call(ctx, tasksList, namespace, nil)
		if err != nil {
			return nil, err
		}
		for _, task := range messages(answer, 1) {
			if isRunning(task) {
				ids = append(ids, namespace+"/"+text(task, 2))
			}
		}
	}
	return ids, err
}

func isRunning(task []byte) bool {
	state := number(task, 4)
	return state == taskRunning || state == taskPaused || state == taskPausing
}

func (c containerd) created(ctx context.Context) (all []container, err error) {
	namespaces, err := c.namespaces(ctx)
	for _, namespace := range namespaces {
		answer, _, err := c.call(ctx, containersList, namespace, nil)
		if err != nil {
			return nil, err
		}
		for _, message := range messages(answer, 1) {
			all = append(all, decodeContainer(namespace, message))
		}
	}
	return all, err
}

func (c containerd) inspect(ctx context.Context, id string) (container, error) {
	out, err := c.describe(ctx, id)
	if err != nil || out.ID == "" {
		return container{}, err
	}
	namespace, own, _ := strings.Cut(id, "/")
	answer, found, err := c.call(ctx, tasksGet, namespace, withText(nil, 1, own))
	if err != nil || !found {
		return container{}, err
	}
	for _, task := range messages(answer, 1) {
		out.State.Running, out.State.Pid = isRunning(task), int(number(task, 3))
	}
	return out, nil
}

// describe returns a container without its state, or the zero value if it does not exist.
func (c containerd) describe(ctx context.Context, id string) (out container, err error) {
	namespace, own, _ := strings.Cut(id, "/")
	answer, _, err := c.call(ctx, containersGet, namespace, withText(nil, 1, own))
	for _, message := range messages(answer, 1) {
		out = decodeContainer(namespace, message)
	}
	return out, err
}

// events queries the labels of a container when it is created: containerd's events do not have them.
func (c containerd) events(ctx context.Context) (<-chan event, error) {
	s, err := c.open(ctx, eventsSubscribe, "", nil)
	if err != nil {
		return nil, err
	}
	// The server sends nothing before the first event: this call detects that it is not reachable.
	if _, err := c.namespaces(ctx); err != nil {
		s.Close()
		return nil, err
	}
	out := make(chan event, maxEvents)
	go func() {
		defer close(out)
		defer s.Close()
		for {
			message, err := s.receive()
			if err != nil {
				return
			}
			e, ok := decodeEvent(message)
			if !ok {
				continue
			}
			if !e.gone {
				e.container, _ = c.describe(ctx, e.id) // on errors, the next list has it
			}
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// decodeEvent decodes an envelope. ok is false for events that are not about a container.
func decodeEvent(envelope []byte) (e event, ok bool) {
	namespace, topic := text(envelope, 2), text(envelope, 3)
	if foreignNamespaces[namespace] != "" || !strings.HasPrefix(topic, "/containers/") &&
		!strings.HasPrefix(topic, "/tasks/") || strings.HasPrefix(topic, "/tasks/exec") {
		return e, false
	}
	for _, what := range messages(envelope, 4) {
		for _, value := range messages(what, 2) {
			e.id = namespace + "/" + text(value, 1)
		}
	}
	e.gone = topic == "/containers/delete"
	return e, e.id != ""
}

// decodeContainer decodes a containerd.services.containers.v1.Container.
func decodeContainer(namespace string, message []byte) (c container) {
	id := text(message, 1)
	c.ID, c.Namespace = namespace+"/"+id, namespace
	c.Config.Labels = map[string]string{}
	for _, entry := range messages(message, 2) {
		c.Config.Labels[text(entry, 1)] = text(entry, 2)
	}
	c.Name = cmp.Or(c.Config.Labels[nerdctlName], id)
	maps.DeleteFunc(c.Config.Labels, func(key, _ string) bool { // added by the runtime, not the user
		return strings.HasPrefix(key, "nerdctl/") || strings.HasPrefix(key, "io.containerd.") ||
			strings.HasPrefix(key, "containerd.io/")
	})
	for _, spec := range messages(message, 5) {
		for _, value := range messages(spec, 2) {
			c.HostConfig.NetworkMode, c.NetworkSettings.SandboxKey = networkOf(value)
		}
	}
	return c
}

// networkOf returns from the OCI specification of a container whether it has its own network, and its path.
func networkOf(spec []byte) (mode, path string) {
	var s struct {
		Linux struct {
			Namespaces []struct{ Type, Path string }
		}
	}
	if json.Unmarshal(spec, &s) != nil {
		return "host", ""
	}
	at := slices.IndexFunc(s.Linux.Namespaces, func(n struct{ Type, Path string }) bool { return n.Type == "network" })
	if at < 0 {
		return "host", ""
	}
	path = s.Linux.Namespaces[at].Path
	if strings.HasPrefix(path, "/proc/") {
		return "container:" + path, ""
	}
	return "", path
}

var errProtobuf = errors.New("no protobuf")

// fields calls each for the fields of a message.
func fields(message []byte, each func(protowire.Number, protowire.Type, []byte)) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errProtobuf
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return errProtobuf
		}
		each(field, kind, message[:n])
		message = message[n:]
	}
	return nil
}

// messages returns the values of a field that are messages, strings or bytes; none if the message is not valid
// protobuf.
func messages(message []byte, field protowire.Number) (all [][]byte) {
	err := fields(message, func(num protowire.Number, kind protowire.Type, value []byte) {
		if num == field && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(value)
			all = append(all, content)
		}
	})
	if err != nil {
		return nil
	}
	return all
}

func text(message []byte, field protowire.Number) string {
	all := messages(message, field)
	if len(all) == 0 {
		return ""
	}
	return string(all[len(all)-1])
}

func number(message []byte, field protowire.Number) (out uint64) {
	_ = fields(message, func(num protowire.Number, kind protowire.Type, value []byte) {
		if num == field && kind == protowire.VarintType {
			out, _ = protowire.ConsumeVarint(value)
		}
	})
	return out
}

func withText(message []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, field, protowire.BytesType), value)
}
