// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// DefaultSocket is the default path of the agent's socket.
const DefaultSocket = "/run/kerb/kerb.sock"

// conf is the configuration that the runtime passes on standard input. The result of previous plugins is returned
// unchanged.
type conf struct {
	Name       string               `json:"name"`
	Socket     string               `json:"socket"`
	PrevResult json.RawMessage      `json:"prevResult"`
	Valid      []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

func parseConf(text []byte) (c conf, err error) {
	if err := json.Unmarshal(text, &c); err != nil {
		return c, types.NewError(types.ErrDecodingFailure, "the configuration on standard input: "+err.Error(), "")
	}
	if string(c.PrevResult) == "null" {
		c.PrevResult = nil
	}
	c.Socket = cmp.Or(c.Socket, DefaultSocket)
	return c, nil
}

// attachment is what one execution of ADD, CHECK or DEL is about.
type attachment struct {
	names.Attachment
	agent agent
	pod   names.Pod
	netns string
}

func newAttachment(c conf, args *skel.CmdArgs) (attachment, error) {
	pod, err := parsePod(args.Args)
	return attachment{
		Attachment: names.Attachment{Network: c.Name, ContainerID: args.ContainerID, Interface: args.IfName},
		agent:      agent{c.Socket}, pod: pod, netns: args.Netns,
	}, err
}

// parsePod reads which pod CNI_ARGS names, as Kubernetes' runtimes set it. What else is in there is for other plugins.
func parsePod(args string) (p names.Pod, err error) {
	for pair := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = value
		}
	}
	for _, part := range []struct{ key, value, allowed string }{
		{"K8S_POD_NAMESPACE", p.Namespace, dnsLabel}, {"K8S_POD_NAME", p.Name, dnsLabel + "."},
	} {
		if part.value == "" {
			return p, invalidArgs("CNI_ARGS has no " + part.key + ": kerb-cni is for runtimes of Kubernetes, which set it")
		}
		if len(part.value) > 253 || strings.Trim(part.value, part.allowed) != "" ||
			strings.Trim(part.value, "-.") != part.value {
			return p, invalidArgs(fmt.Sprintf("%s in CNI_ARGS is %.80q, which is no name of Kubernetes", part.key, part.value))
		}
	}
	return p, nil
}

const dnsLabel = "abcdefghijklmnopqrstuvwxyz0123456789-"

func invalidArgs(text string) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, text, "")
}
