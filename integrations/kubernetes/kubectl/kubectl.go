// SPDX-License-Identifier: Apache-2.0

// Package kubectl implements the kubectl plugin, which shows, pauses, resumes and undoes rollouts of ClusterModules.
package kubectl

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// Exit codes of Run.
const (
	exitError  = 1
	exitUsage  = 2
	exitFailed = 3 // of status: a node reports why it does not run the new version
)

// timeout is how long all requests of a command may take together.
const timeout = time.Minute

const usage = `usage: kubectl kerb [--kubeconfig FILE] rollout status [NAME]
       kubectl kerb [--kubeconfig FILE] rollout pause|resume NAME
       kubectl kerb [--kubeconfig FILE] rollout undo NAME [--to-revision REVISION]
       kubectl kerb [--kubeconfig FILE] rollout history NAME [--revision REVISION]

NAME is a ClusterModule, for status, pause and resume one with spec.rollout. status exits with 3 if a node does not run the new version and says why.
pause: no node begins with the new version, and those that run it keep it. resume: it continues, also after a
halt, without the nodes that do not run the new version now, if at least one runs it. undo: all nodes run the previous version;
without spec.rollout, or with --to-revision, the ClusterModule gets the spec of an earlier revision. history lists the
revisions, or prints the spec of one.
`

const (
	basePath    = "/apis/" + api.Group + "/" + api.Version + "/"
	modulesPath = basePath + api.ClusterModules
)

// patches are the changes of spec.rollout by command.
var patches = map[string]map[string]any{
	"pause":  {"paused": true},
	"resume": {"paused": false},
	"undo":   {"percent": 0, "nodes": []any{}},
}

// Run executes the command with its arguments, and returns the exit code of the program.
func Run(ctx context.Context, args []string, out io.Writer) (int, error) {
	flags := flag.NewFlagSet("kubectl-kerb", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file := flags.String("kubeconfig", cmp.Or(os.Getenv("KUBECONFIG"), home()), "")
	to, revision := flags.String("to-revision", "", ""), flags.String("revision", "", "")
	words, err := parse(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err = fmt.Fprint(out, usage)
		return 0, err
	case err != nil:
		return exitUsage, fmt.Errorf("%w\n%s", err, usage)
	}
	command := strings.Join(words[:min(2, len(words))], " ")
	verb, isRollout := strings.CutPrefix(command, "rollout ")
	patch := patches[verb]
	known := verb == "status" || verb == "history" || patch != nil
	if !isRollout || !known || verb != "status" && len(words) != 3 || len(words) > 3 ||
		*to != "" && verb != "undo" || *revision != "" && verb != "history" {
		return exitUsage, fmt.Errorf("unknown command %q\n%s", strings.Join(words, " "), usage)
	}
	client, err := watch.Load(*file)
	if err != nil {
		return exitError, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	name := ""
	if len(words) == 3 {
		name = words[2]
	}
	switch verb {
	case "status":
		return printStatus(ctx, client, name, out)
	case "history":
		if err = printHistory(ctx, client, name, *revision, out); err != nil {
			return exitError, err
		}
		return 0, nil
	case "resume":
		err = resume(ctx, client, name)
	case "undo":
		verb, err = undo(ctx, client, name, *to)
	default:
		err = change(ctx, client, name, patch)
	}
	if err != nil {
		return exitError, err
	}
	_, err = fmt.Fprintf(out, "clustermodule %s: %s\n", name, verb)
	return 0, err
}

// parse returns the words of a command, before, between and after which flags may be.
func parse(flags *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if args = flags.Args(); len(args) == 0 {
			return words, nil
		}
		words, args = append(words, args[0]), args[1:]
	}
}

// home is the kubeconfig file of the user.
func home() string {
	dir, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, ".kube", "config")
}

// undo restores the previous version of a rollout, or an earlier revision, on all nodes, and returns a description.
func undo(ctx context.Context, c *watch.Client, name, revision string) (string, error) {
	o, err := read(ctx, c, name)
	if err != nil {
		return "", err
	}
	if o.Spec.Rollout != nil && revision == "" {
		return "undo", change(ctx, c, name, patches["undo"])
	}
	revision, err = restore(ctx, c, o, revision)
	return "undo to revision " + revision, err
}

// inRollout returns a ClusterModule that has a rollout.
func inRollout(ctx context.Context, c *watch.Client, name string) (m api.Module, err error) {
	m, err = get(ctx, c, name)
	if err == nil && m.Spec.Rollout == nil {
		return m, fmt.Errorf("ClusterModule %s has no spec.rollout: all nodes run package and config of its spec", name)
	}
	return m, err
}

// change patches spec.rollout.
func change(ctx context.Context, c *watch.Client, name string, rollout map[string]any) error {
	m, err := inRollout(ctx, c, name)
	if err != nil {
		return err
	}
	return merge(ctx, c, m, "", map[string]any{"spec": map[string]any{"rollout": rollout}})
}

// resume ends a pause, and a halt: the nodes that do not run the new version now are no reason for another one.
func resume(ctx context.Context, c *watch.Client, name string) error {
	m, err := inRollout(ctx, c, name)
	if err != nil {
		return err
	}
	if m.Spec.Rollout.Paused {
		if err := change(ctx, c, name, patches["resume"]); err != nil {
			return err
		}
		if m, err = inRollout(ctx, c, name); err != nil {
			return err
		}
	}
	if p := m.Progress(); p == nil || p.Halted == nil {
		return nil
	}
	nodes, err := listNodes(ctx, c)
	if err != nil {
		return err
	}
	s := summarize(m, nodes)
	if m.Progress().Begun() && s.run == 0 {
		return fmt.Errorf("no node runs the new version of %s, so that nothing is known of it, and it does not continue: "+
			"kubectl kerb rollout undo %s, then change the version, or spec.rollout.nodes, and start again; or set "+
			"spec.rollout.percent to roll it out by hand", name, name)
	}
	missing := 0 // canaries that are no node of the cluster
	for _, name := range m.Division().Nodes {
		if !slices.ContainsFunc(nodes, func(n api.KerbNode) bool { return n.Metadata.Name == name }) {
			missing++
		}
	}
	return merge(ctx, c, m, "/status", map[string]any{"status": map[string]any{"rollout": map[string]any{"halted": nil,
		"accepted": s.updated - s.run + len(s.unable) + missing, "since": time.Now().UTC().Truncate(time.Second)}}})
}

// merge patches a ClusterModule that is as it was read: its rollout has not just ended.
func merge(ctx context.Context, c *watch.Client, m api.Module, part string, patch map[string]any) error {
	name := m.Metadata.Name
	patch["metadata"] = map[string]any{"resourceVersion": m.Metadata.ResourceVersion}
	err := c.Merge(ctx, modulesPath+"/"+url.PathEscape(name)+part, patch, nil)
	if watch.IsStatus(err, http.StatusConflict) {
		return fmt.Errorf("ClusterModule %s has changed since it was read, and was not modified: repeat the command", name)
	}
	return err
}
