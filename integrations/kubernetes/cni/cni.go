// SPDX-License-Identifier: Apache-2.0

// Package cni implements kerb-cni, the last plugin in the chain of a CNI network. It registers a pod as a Service with
// the agent before the container runtime starts the pod's first process, and succeeds only when chains on the pod's
// interface drop its packets until its labels are known (package names).
//
// It connects only to the agent's socket, and not to the API server, so that pods start without the API server. Without
// an agent, pods do not start: ADD fails, and the kubelet retries.
package cni

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// Name is the type of the plugin in network configurations, and the name of its program.
const Name = "kerb-cni"

// How long commands may take: runtimes wait for minutes, and in ADD and STATUS the agent may restart meanwhile. A
// kubelet asks for STATUS every five seconds, and takes the runtime for dead after 30 s without an answer.
const (
	addTime    = 15 * time.Second
	removeTime = 3 * time.Second
	statusTime = 10 * time.Second
)

// Codes of errors: those below 100 are of the CNI specification.
const (
	codeUnavailable = 50  // STATUS: ADD would fail
	codeUnprotected = 100 // the pod's interface has no chains that protect it
	codeRefused     = 101 // the agent refuses a request
)

// run executes the command that CNI_COMMAND names, and returns the exit status.
func run() int {
	funcs := skel.CNIFuncs{Add: add, Check: check, Del: del, GC: gc, Status: status}
	versions := version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
	about := "kerb-cni: chained CNI plugin; commands: install, uninstall"
	if err := skel.PluginMainFuncsWithError(funcs, versions, about); err != nil {
		if printed := err.Print(); printed != nil {
			fmt.Fprintln(os.Stderr, printed)
		}
		return 1
	}
	return 0
}

// add makes the pod a service and prints the result of the plugins before, as the specification demands of a plugin
// that adds no interface.
func add(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if len(conf.PrevResult) == 0 {
		return types.NewError(types.ErrInvalidNetworkConfig, "kerb-cni creates no interface: put it after the plugin that "+
			"does, as the last one of the list", "")
	}
	if own, err := ns.CheckNetNS(args.Netns); err != nil {
		return err
	} else if own {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS "+args.Netns+" is the namespace of the node: "+
			"pods with hostNetwork use the interfaces of the node, and need no CNI", "")
	}
	p, err := newAttachment(conf, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), addTime)
	defer cancel()
	if err := p.protect(ctx); err != nil {
		p.undo()
		return err
	}
	if _, err := os.Stdout.Write(append(conf.PrevResult, '\n')); err != nil {
		p.undo()
		return types.NewError(types.ErrIOFailure, "write the result: "+err.Error(), "")
	}
	return nil
}

// check fails unless the pod's interface has the chains that ADD attached, or those for the pod's labels.
func check(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	p, err := newAttachment(conf, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	s, err := p.service(ctx)
	if err == nil {
		err = p.verify(ctx, s)
	}
	return cniError(err)
}

// del removes the service of the pod. It ignores errors of the agent, since Kerb must not keep pods from being deleted;
// kerb-kube-node and GC delete services of deleted pods.
func del(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	p, err := newAttachment(conf, args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "kerb-cni DEL: %v; its service, if it has one, remains until GC\n", err)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if err := p.remove(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "kerb-cni DEL: %v; the service remains until GC\n", err)
	}
	return nil
}
