// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"text/tabwriter"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// object is a ClusterModule as the API server has it: with fields that this program does not know, and numbers as they
// are written.
type object struct {
	all  map[string]json.RawMessage
	spec api.RawSpec
	api.ClusterModule
}

// read returns a ClusterModule.
func read(ctx context.Context, c *watch.Client, name string) (o object, err error) {
	var text json.RawMessage
	err = c.Get(ctx, modulesPath+"/"+url.PathEscape(name), &text)
	if watch.IsStatus(err, http.StatusNotFound) {
		return o, fmt.Errorf("there is no ClusterModule %s: kubectl get clustermodules lists them", name)
	}
	if err != nil {
		return o, err
	}
	return decode(text)
}

func decode(text []byte) (o object, err error) {
	if err = json.Unmarshal(text, &o.all); err == nil {
		err = json.Unmarshal(o.all["spec"], &o.spec)
	}
	if err == nil {
		err = json.Unmarshal(text, &o.ClusterModule)
	}
	return o, err
}

// get returns a ClusterModule without unknown fields.
func get(ctx context.Context, c *watch.Client, name string) (api.Module, error) {
	o, err := read(ctx, c, name)
	return o.Module(), err
}

// revisionsOf returns the revisions of a ClusterModule, the newest first.
func revisionsOf(ctx context.Context, c *watch.Client, m api.ObjectMeta) (all []api.ModuleRevision, err error) {
	all, err = watch.List[api.ModuleRevision](ctx, c, watch.Resource{Path: basePath + api.ModuleRevisions}, discard)
	all = slices.DeleteFunc(all, func(r api.ModuleRevision) bool {
		return r.Spec.Module != m.Name || r.Metadata.Labels[api.LabelModuleUID] != m.UID
	})
	api.SortRevisions(all, func(r api.ModuleRevision) api.ObjectMeta { return r.Metadata })
	return all, err
}

// printHistory prints the revisions of a ClusterModule, or the spec of one.
func printHistory(ctx context.Context, c *watch.Client, name, revision string, out io.Writer) error {
	o, err := read(ctx, c, name)
	if err != nil {
		return err
	}
	all, err := revisionsOf(ctx, c, o.Metadata)
	if err != nil {
		return err
	}
	now, _ := o.spec.Revision(name)
	if revision != "" {
		r, err := find(all, name, now, revision)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, r.Spec.Data)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "REVISION\tNUMBER\tCREATED\tPACKAGE\t")
	for _, r := range all {
		var spec api.ModuleSpec
		if err := json.Unmarshal([]byte(r.Spec.Data), &spec); err != nil {
			return fmt.Errorf("ModuleRevision %s: spec.data: %w", r.Metadata.Name, err)
		}
		mark := ""
		if r.Metadata.Name == now {
			mark = "present"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", r.Metadata.Name, api.RevisionNumber(r.Metadata), r.Metadata.Created,
			spec.Package.Name+spec.Package.Image, mark)
	}
	return w.Flush()
}

// find returns a revision by its name; without one, the newest that is not the present one. If that is not among them,
// the newest may not be the one before.
func find(all []api.ModuleRevision, module, now, name string) (r api.ModuleRevision, err error) {
	if name == "" && len(all) > 0 && !slices.ContainsFunc(all, func(r api.ModuleRevision) bool {
		return r.Metadata.Name == now
	}) {
		return r, fmt.Errorf("the present spec of ClusterModule %s has no revision yet (is kerb-kube-controller running?): "+
			"wait, or name one with --to-revision", module)
	}
	i := slices.IndexFunc(all, func(r api.ModuleRevision) bool {
		return r.Metadata.Name == name || name == "" && r.Metadata.Name != now
	})
	switch {
	case i >= 0:
		return all[i], nil
	case name == "":
		return r, fmt.Errorf("ClusterModule %s has no earlier revision: kerb-kube-controller writes one whenever the spec "+
			"changes", module)
	}
	return r, fmt.Errorf("ClusterModule %s has no revision %s: kubectl kerb rollout history %s lists them", module, name,
		module)
}

// restore gives a ClusterModule the spec of a revision, if it is still as it was read.
func restore(ctx context.Context, c *watch.Client, o object, revision string) (string, error) {
	name := o.Metadata.Name
	all, err := revisionsOf(ctx, c, o.Metadata)
	if err != nil {
		return "", err
	}
	now, _ := o.spec.Revision(name)
	r, err := find(all, name, now, revision)
	if err != nil {
		return "", err
	}
	spec, err := restored(o, r)
	if err != nil {
		return "", err
	}
	if o.all["spec"], err = json.Marshal(spec); err != nil {
		return "", err
	}
	err = c.Replace(ctx, modulesPath+"/"+url.PathEscape(name), o.all, nil)
	if watch.IsStatus(err, http.StatusConflict) {
		err = fmt.Errorf("ClusterModule %s has changed since it was read, and was not modified: repeat the command", name)
	}
	return r.Metadata.Name, err
}

// restored returns the spec of a revision. If the ClusterModule has a rollout in waves, the revision is rolled out from
// the version that all nodes run. While nodes run two versions, only the previous one can be restored: with a third
// one, nodes would leave the new version at once.
func restored(o object, r api.ModuleRevision) (api.RawSpec, error) {
	var spec api.RawSpec
	if err := json.Unmarshal([]byte(r.Spec.Data), &spec); err != nil {
		return nil, fmt.Errorf("ModuleRevision %s: spec.data: %w", r.Metadata.Name, err)
	}
	is := o.Spec.Rollout
	if is == nil {
		return spec, nil
	}
	name := o.Metadata.Name
	before, _ := o.spec.Previous().Revision(name)
	rollout := o.spec["rollout"]
	switch p := o.Module().Progress(); {
	case is.ByHand():
		return nil, fmt.Errorf("ClusterModule %s is rolled out by hand: undo it without --to-revision, or remove "+
			"spec.rollout.percent or spec.rollout first", name)
	case before == r.Metadata.Name: // all nodes switch to it without waves, as after undo
	case p == nil || p.Percent < 100 || p.Halted != nil || !o.complete():
		return nil, fmt.Errorf("ClusterModule %s is being rolled out, and nodes with its new version would leave that at "+
			"once: kubectl kerb rollout undo %s brings back the previous one, which is revision %s; or wait until RolledOut "+
			"is True", name, name, before)
	case o.Status.RolledBack > 0:
		return nil, fmt.Errorf("%d nodes have rolled back the current version of ClusterModule %s, and would run it "+
			"until the rollout reaches them: kubectl kerb rollout undo %s, or mend the version", o.Status.RolledBack, name, name)
	default:
		if field := changedOutsideRollout(spec, o.spec); field != "" {
			return nil, fmt.Errorf("ModuleRevision %s differs in spec.%s, which changes on all nodes at once: change that "+
				"first, or remove spec.rollout", r.Metadata.Name, field)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(rollout, &fields); err != nil {
			return nil, err
		}
		previous := map[string]json.RawMessage{"package": o.spec["package"]}
		if config := o.spec["config"]; config != nil {
			previous["config"] = config
		}
		var err error
		if fields["previous"], err = json.Marshal(previous); err != nil {
			return nil, err
		}
		if rollout, err = json.Marshal(fields); err != nil {
			return nil, err
		}
	}
	spec["rollout"] = rollout
	return spec, nil
}

// changedOutsideRollout returns a field in which two specs differ and that rollouts do not bring to the nodes in waves,
// or an empty string.
func changedOutsideRollout(a, b api.RawSpec) string {
	for _, field := range slices.Sorted(maps.Keys(a)) {
		if field != "package" && field != "config" && field != "rollout" && !sameJSON(a[field], b[field]) {
			return field
		}
	}
	for _, field := range slices.Sorted(maps.Keys(b)) {
		if _, both := a[field]; !both && field != "package" && field != "config" && field != "rollout" {
			return field
		}
	}
	return ""
}

func sameJSON(a, b json.RawMessage) bool {
	var first, second any
	return json.Unmarshal(a, &first) == nil && json.Unmarshal(b, &second) == nil && reflect.DeepEqual(first, second)
}

// complete reports whether all nodes that answer run the version of the spec.
func (o object) complete() bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c api.Condition) bool {
		return c.Type == "RolledOut" && c.Status == "True"
	})
}
