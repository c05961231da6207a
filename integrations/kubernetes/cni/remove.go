// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// remove deletes the service of an attachment, if it has one: neither one of a later sandbox of the pod, nor one of
// another interface of the same sandbox.
func (p attachment) remove(ctx context.Context) error {
	for {
		s, err := p.service(ctx)
		if isStatus(err, statusNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.Metadata.Owner != names.OwnerPods || !p.Applied(s.Metadata.Labels[names.LabelAttachment]) {
			return nil
		}
		err = p.agent.delete(ctx, s)
		if !isStatus(err, statusPreconditionFailed) {
			return err
		}
	}
}

// delete deletes a service unless it has changed since it was read.
func (a agent) delete(ctx context.Context, s v1.Service) error {
	r := request{method: "DELETE", path: servicePath(s.Metadata.Name), header: "If-Match: " + tag(s)}
	err := a.call(ctx, r, nil)
	if isStatus(err, statusNotFound) {
		return nil
	}
	return err
}

// gc deletes the services of the network whose attachments the runtime does not know.
func gc(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	valid := map[string]bool{}
	for _, v := range conf.Valid {
		valid[names.Attachment{Network: conf.Name, ContainerID: v.ContainerID, Interface: v.IfName}.String()] = true
	}
	ctx, cancel := context.WithTimeout(context.Background(), addTime)
	defer cancel()
	a := agent{conf.Socket}
	var services []v1.Service
	if err := a.call(ctx, request{method: "GET", path: "/v1/services"}, &services); err != nil {
		return cniError(err)
	}
	var failed []error
	for _, s := range services {
		label := s.Metadata.Labels[names.LabelAttachment]
		if s.Metadata.Owner == names.OwnerPods && names.OfNetwork(label, conf.Name) && !valid[label] {
			failed = append(failed, a.delete(ctx, s))
		}
	}
	return cniError(errors.Join(failed...))
}

// status fails while no pod could be protected. It waits for an agent that restarts, as ADD does: on a node that is not
// ready for a moment, pods fail to start. Running pods keep their chains, so that it is never code 51.
func status(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusTime)
	defer cancel()
	a := agent{conf.Socket}
	if err := retry(ctx, func() error { return a.pending(ctx) }); err != nil {
		return types.NewError(codeUnavailable, err.Error(), "")
	}
	return nil
}
