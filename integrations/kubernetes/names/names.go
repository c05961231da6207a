// SPDX-License-Identifier: Apache-2.0

// Package names defines the contract between kerb-cni, which registers a pod as a Service before it can send a packet,
// and kerb-kube-node, which knows the labels of the pod.
//
//   - kerb-kube-node applies the module of PendingModule at its first sync. Pods do not start without it.
//   - kerb-cni ADD applies the Service with the labels of PodLabels. Its chains include the pending module and drop
//     everything except link control and ARP.
//   - kerb-kube-node replaces the labels by those of Admit as soon as it knows the labels of the pod. The agent then
//     replaces each chain atomically: every packet passes either the pending module or the modules of the pod.
//   - kerb-cni DEL removes the Service, unless a later sandbox of the pod has replaced it.
//   - kerb-kube-node deletes services of OwnerPods without a pod, since DEL succeeds even if the agent is down.
package names

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Owners of resources of the agent.
const (
	OwnerPods     = "kubernetes-pods"     // of the services of pods, which kerb-cni and kerb-kube-node change
	OwnerServices = "kubernetes-services" // of virtual services
	Owner         = "kubernetes"          // of everything else that kerb-kube-node applies
)

// Pending is the module that drops the packets of pods whose labels are not known yet.
const Pending = "kubernetes-pending"

// Of Modules of namespaces, whose names on the node Module returns.
const (
	// ReservedModules matches the names on the node of Modules of namespaces: no ClusterModule may have one.
	ReservedModules = "^m-[a-z0-9-]+-[0-9a-f]{20}$"
	maxReadable     = 40 // of 63: what fits between m- and -DIGEST
)

// Module returns the agent's name for a namespaced Module. Only the digest identifies it, since names of namespaces and
// Modules may contain dashes and be too long. The rest is for readability.
func Module(namespace, name string) string { return qualified("m-", namespace, name) }

// VirtualService returns the agent's name for the virtual service of a Service, which is formed like that of a Module.
func VirtualService(namespace, name string) string { return qualified("s-", namespace, name) }

func qualified(prefix, namespace, name string) string {
	readable := namespace + "-" + name
	return prefix + strings.Trim(readable[:min(len(readable), maxReadable)], "-") + "-" + digest(namespace+"/"+name)
}

// Labels of the services of pods.
const (
	LabelPrefix     = "kerb.dev/" // ignored in labels of pods: a pod must not pass for another one
	LabelNamespace  = LabelPrefix + "namespace"
	LabelPod        = LabelPrefix + "pod"        // absent if the name has more than 63 characters
	LabelAttachment = LabelPrefix + "attachment" // Attachment of the ADD that applied the service
	LabelPending    = LabelPrefix + "pending"    // "true" until the labels of the pod are known
)

// maxLabelValue is the longest value of a label. Names of pods may be longer.
const maxLabelValue = 63

// Pod identifies a pod, like in the container runtime.
type Pod struct{ Namespace, Name, UID string }

// Digest identifies a pod. It is the variable part of the name of its Service.
type Digest [10]byte

// podPrefix is the prefix of the names of pods' Services.
const podPrefix = "p-"

// Digest returns the pod's digest.
func (p Pod) Digest() Digest {
	identity := p.UID
	if identity == "" {
		identity = p.Namespace + "/" + p.Name
	}
	return digestOf(identity)
}

// Service returns the name of the pod's Service. It does not contain the pod's name, which may be too long, and which a
// new pod may have while the previous one is being removed.
func (p Pod) Service() string {
	digest := p.Digest()
	return podPrefix + hex.EncodeToString(digest[:])
}

// DigestOf returns the digest of the pod whose Service has this name, or false for names of other Services.
func DigestOf(service string) (d Digest, ok bool) {
	text, ok := strings.CutPrefix(service, podPrefix)
	if !ok || len(text) != hex.EncodedLen(len(d)) {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(text))
	return d, err == nil
}

// Attachment is an interface that a container runtime adds to a sandbox with ADD, and removes with DEL.
type Attachment struct{ Network, ContainerID, Interface string }

// String returns the value of LabelAttachment. It is a digest, since names of networks and ids of containers may be too
// long for a label.
func (a Attachment) String() string {
	return digest(a.Network) + "." + digest(a.ContainerID) + "." + digest(a.Interface)
}

// firstInterface is what kubelets have container runtimes call the interface of a pod.
const firstInterface = "eth0"

// Adopted returns the attachment of a sandbox that got its interface without kerb-cni. The name of its network is not
// known: GC, which states the attachments of one network, concerns none of these.
func Adopted(containerID string) Attachment {
	return Attachment{ContainerID: containerID, Interface: firstInterface}
}

// IsAdopted reports whether a label states an attachment of Adopted.
func IsAdopted(attachment string) bool { return OfNetwork(attachment, "") }

// Applied reports whether a label states this attachment, or the adopted one of the same interface.
func (a Attachment) Applied(attachment string) bool {
	adopted := a
	adopted.Network = ""
	return attachment == a.String() || attachment == adopted.String()
}

// OfNetwork reports whether the attachment in a label belongs to a network.
func OfNetwork(attachment, network string) bool {
	return strings.HasPrefix(attachment, digest(network)+".")
}

// SameSandbox reports whether the attachment in a label is another interface of the same sandbox.
func (a Attachment) SameSandbox(attachment string) bool {
	return OfSandbox(attachment, a.ContainerID) && attachment != a.String()
}

// OfSandbox reports whether the attachment in a label is an interface of a sandbox.
func OfSandbox(attachment, containerID string) bool {
	return strings.Contains(attachment, "."+digest(containerID)+".")
}

// digest is the first 20 hexadecimal digits of the SHA-256 of a text.
func digest(text string) string {
	d := digestOf(text)
	return hex.EncodeToString(d[:])
}

func digestOf(text string) Digest {
	sum := sha256.Sum256([]byte(text))
	return Digest(sum[:])
}

// PodLabels returns the labels that kerb-cni sets on the Service of a pod.
func PodLabels(p Pod, a Attachment) map[string]string {
	labels := map[string]string{LabelNamespace: p.Namespace, LabelAttachment: a.String(), LabelPending: "true"}
	if len(p.Name) <= maxLabelValue {
		labels[LabelPod] = p.Name
	}
	return labels
}

// IsPending reports whether a service is that of a pod whose labels are not known yet.
func IsPending(labels map[string]string) bool { return labels[LabelPending] == "true" }

// Admit returns the labels of a service whose pod has the given labels, so that it is no longer pending.
func Admit(service, pod map[string]string) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, pod)
	maps.DeleteFunc(labels, func(key, _ string) bool { return strings.HasPrefix(key, LabelPrefix) })
	for _, key := range []string{LabelNamespace, LabelPod, LabelAttachment} {
		if value, ok := service[key]; ok {
			labels[key] = value
		}
	}
	return labels
}

// PendingModule returns the module that drops all packets from and to pending services, except neighbour discovery, MLD
// and ARP, which the kernel sends as soon as an interface is up.
func PendingModule() v1.Module {
	return v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: Pending},
		Spec: v1.ModuleSpec{
			Package: "firewall",
			Attach:  v1.Attach{Services: LabelPending + "=true"},
			CommonModuleSpec: v1.CommonModuleSpec{
				Config: map[string]any{
					"defaultPolicy": map[string]any{"ingress": "deny", "egress": "deny"},
					"state":         map[string]any{"enabled": false}, // not needed, as no connection is allowed
					"fragments":     "deny",
				},
				Order:         v1.Order{Priority: v1.DefaultPriority},
				FailurePolicy: v1.FailClosed,
			},
		},
	}
}
