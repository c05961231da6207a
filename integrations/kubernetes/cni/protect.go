// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// retryAfter is how long the plugin waits while the agent is away or not ready.
const retryAfter = 50 * time.Millisecond

// protect returns when chains on the pod's interface drop its packets, or when the chains for its labels are attached.
// It retries while the agent restarts.
func (p attachment) protect(ctx context.Context) error {
	return cniError(retry(ctx, func() error {
		s, err := p.apply(ctx)
		if err != nil {
			return err
		}
		return p.verify(ctx, s)
	}))
}

// retry calls f until it succeeds, fails permanently, or the context ends. It then returns the last error from the
// agent, not the timeout of the attempt after it.
func retry(ctx context.Context, f func() error) error {
	var last error
	for {
		err := f()
		if err == nil || !isTemporary(err) {
			return err
		}
		if last != nil && (ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded)) {
			return last
		}
		last = err
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryAfter):
		}
	}
}

// apply registers the pod as a service, and returns the service. It does not change a service of the same sandbox,
// whose labels kerb-kube-node may have replaced. It replaces one of an earlier sandbox of the pod.
func (p attachment) apply(ctx context.Context) (v1.Service, error) {
	s, err := p.put(ctx, "If-None-Match: *")
	if !isStatus(err, statusPreconditionFailed) {
		return s, err
	}
	if s, err = p.service(ctx); err != nil || p.has(s) {
		return s, err
	}
	return p.put(ctx, "If-Match: "+tag(s))
}

// put returns the service in the agent's response. An older agent returns the changes instead, as does any agent if
// another client has changed the service in the meantime.
func (p attachment) put(ctx context.Context, condition string) (answer v1.Service, err error) {
	service := v1.Service{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: p.pod.Service(), Labels: names.PodLabels(p.pod, p.Attachment)},
		Spec:     v1.ServiceSpec{Netns: p.netns},
	}
	header := condition + "\r\nPrefer: return=representation"
	err = p.agent.call(ctx, request{"PUT", p.path(), header, service}, &answer)
	if err == nil && answer.Kind != v1.KindService {
		return p.service(ctx)
	}
	return answer, err
}

func (p attachment) path() string { return servicePath(p.pod.Service()) }

func servicePath(name string) string { return "/v1/services/" + name + "?owner=" + names.OwnerPods }

// service returns the service without the foreign programs on its hooks: to list them, the kernel takes a lock for
// which all starting and ending pods wait.
func (p attachment) service(ctx context.Context) (s v1.Service, err error) {
	return s, p.agent.call(ctx, request{method: "GET", path: "/v1/services/" + p.pod.Service(),
		header: "Prefer: return=minimal"}, &s)
}

// has reports whether a service is the one of the attachment, or of another interface of its sandbox.
func (p attachment) has(s v1.Service) bool {
	label := s.Metadata.Labels[names.LabelAttachment]
	return s.Metadata.Owner == names.OwnerPods && (label == p.String() || p.SameSandbox(label))
}

// tag is the entity tag of a service as it was read.
func tag(s v1.Service) string { return `"` + s.Metadata.ResourceVersion + `"` }

// unprotected is the error of an interface that lacks chains. The agent may still be about to attach them.
type unprotected struct{ text string }

func (e *unprotected) Error() string { return e.text }

// verify fails unless both directions of the pod's interface have the chains that they should have.
func (p attachment) verify(ctx context.Context, s v1.Service) error {
	if !p.has(s) {
		return &unprotected{fmt.Sprintf("service %s does not belong to this sandbox: a later one of the pod has replaced it",
			s.Metadata.Name)}
	}
	link := p.link(s)
	if link == nil {
		return &unprotected{fmt.Sprintf("the agent has found no interface on the node that is the peer of %s in %s: the "+
			"plugin before kerb-cni must create a veth, as bridge, ptp and flannel do", p.Interface, p.netns)}
	}
	if !names.IsPending(s.Metadata.Labels) {
		return sameChains(s, link) // labels are replaced together with the chains
	}
	for _, hook := range []string{"tc-ingress", "tc-egress"} {
		denies := func(h v1.HookState) bool { return h.Hook == hook && slices.Contains(h.Modules, names.Pending) }
		if !slices.ContainsFunc(link.Hooks, denies) {
			return p.noChain(ctx, link.Interface, hook)
		}
	}
	return nil
}

// sameChains fails unless an interface has the same modules as the other interfaces of a pod with known labels: the
// agent may already know a new interface, but not have attached its chains yet.
func sameChains(s v1.Service, link *v1.ServiceLink) error {
	for _, other := range s.Status.Links {
		if other.Moved {
			continue
		}
		for _, want := range other.Hooks {
			same := func(h v1.HookState) bool { return h.Hook == want.Hook && slices.Equal(h.Modules, want.Modules) }
			if !slices.ContainsFunc(link.Hooks, same) {
				return &unprotected{fmt.Sprintf("%s of %s does not run the modules %v of %s, another interface of the pod; see "+
					"kerb service show %s", want.Hook, link.Interface, want.Modules, other.Interface, s.Metadata.Name)}
			}
		}
	}
	return nil
}

func (p attachment) link(s v1.Service) *v1.ServiceLink {
	if s.Status == nil {
		return nil
	}
	at := slices.IndexFunc(s.Status.Links, func(l v1.ServiceLink) bool { return l.Peer == p.Interface && !l.Moved })
	if at < 0 {
		return nil
	}
	return &s.Status.Links[at]
}

// noChain returns why an interface lacks the chain that drops everything.
func (p attachment) noChain(ctx context.Context, link, hook string) error {
	if err := p.agent.pending(ctx); err != nil {
		return err
	}
	return &unprotected{fmt.Sprintf("%s of %s does not run module %s; see kerb module show %s", hook, link, names.Pending,
		names.Pending)}
}

// notReady is the error of a node on which no pod can be protected.
type notReady struct{ text string }

func (e *notReady) Error() string { return e.text }

// pending fails unless the module exists that drops the packets of pods with unknown labels.
func (a agent) pending(ctx context.Context) error {
	var m v1.Module
	err := a.call(ctx, request{method: "GET", path: "/v1/modules/" + names.Pending}, &m)
	if isStatus(err, statusNotFound) {
		return &notReady{fmt.Sprintf("the agent has no module %s: kerb-kube-node applies it at its first sync; see its log",
			names.Pending)}
	}
	if err != nil {
		return err
	}
	if m.Metadata.Owner != names.Owner {
		return &notReady{fmt.Sprintf("module %s does not belong to %s: delete it, and kerb-kube-node applies its own",
			names.Pending, names.Owner)}
	}
	if m.Status == nil {
		return nil
	}
	for _, c := range m.Status.Conditions {
		if c.Type == "Ready" && c.Status == "False" && c.Reason == "ModuleFailed" {
			return &notReady{fmt.Sprintf("module %s does not run: %s", names.Pending, c.Message)}
		}
	}
	return nil
}

// isTemporary reports whether the same request may succeed a moment later.
func isTemporary(err error) bool {
	var away *unreachable
	var no *refused
	var open *unprotected
	return errors.As(err, &away) || errors.As(err, &open) || errors.As(err, &no) && (no.status == statusNotFound ||
		no.status == statusPreconditionFailed || no.status == statusTooMany || no.status >= statusInternal)
}

// cniError adds the CNI error code to an error.
func cniError(err error) error {
	var away *unreachable
	var no *refused
	var code uint
	switch {
	case err == nil:
		return nil
	case errors.As(err, &away):
		code = types.ErrTryAgainLater
	case errors.As(err, &no):
		code = codeRefused
	default:
		code = codeUnprotected
	}
	return types.NewError(code, err.Error(), "")
}

// undo removes the service of an ADD that fails. If the agent is away the service stays, and denies: runtimes call DEL
// after a failed ADD.
func (p attachment) undo() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if err := p.remove(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "kerb-cni ADD: undo: %v\n", err)
	}
}
