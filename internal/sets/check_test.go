// SPDX-License-Identifier: Apache-2.0

package sets

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
)

func set(name, kind string, elements ...string) v1.Set {
	s := v1.Set{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindSet}, Metadata: v1.ObjectMeta{Name: name}}
	s.Spec.Type = kind
	s.Spec.Elements, _ = resource.NormalElements(kind, elements, "")
	return s
}

// state returns a state with sets, and with modules by name.
func state(modules map[string]*deploy.Module, all ...v1.Set) State {
	s := State{Desired: resource.State{}, Modules: modules}
	for _, one := range all {
		s.Desired.Put(resource.ObjectOf(one))
	}
	return s
}

// using is a module that refers to sets or services.
func using(references ...sdk.SetReference) map[string]*deploy.Module {
	return map[string]*deploy.Module{"fw": {Dataplane: dataplane.Module{Settings: sdk.Settings{Sets: references}}}}
}

func toSet(name string) sdk.SetReference {
	return sdk.SetReference{Set: name, Field: "rules[0].dst", Types: []string{"addresses", "prefixes"}}
}

func toServices(selector string) sdk.SetReference {
	return sdk.SetReference{Services: selector, Field: "rules[0].dst"}
}

// A wrong name is a mistake of the request, and to take away a set in use a conflict; what was wrong before refuses no
// change of others.
func TestCheck(t *testing.T) {
	addresses, ports, fw := set("bad", "addresses", "192.0.2.1"), set("bad", "ports", "1"), using(toSet("bad"))
	var broken v1.Module
	broken.Spec.Config = map[string]any{"rules": []any{map[string]any{"set": "bad"}}}
	down := map[string]*deploy.Module{"fw": deploy.Unavailable(broken, errors.New("no control plane"), false, nil)}
	var full []v1.Set
	for i := range dataplane.MaxSets {
		full = append(full, set(fmt.Sprint("s", i), "addresses"))
	}
	db, cache := using(toServices("role=db")), using(toServices("role=cache"))
	for name, c := range map[string]struct {
		now, next State
		conflict  bool
		want      string
	}{
		"applied together":   {next: state(fw, addresses)},
		"no set":             {next: state(fw), want: "there is no set bad: create it with kerb set load bad FILE"},
		"ports as addresses": {next: state(fw, ports), want: "bad has the type ports, and must have addresses or prefixes"},
		"deleted in use": {now: state(fw, addresses), next: state(fw), conflict: true,
			want: "set bad is used by module fw (spec.config.rules[0].dst)"},
		"another type in use": {now: state(fw, addresses), next: state(fw, ports), conflict: true,
			want: "is used by module fw"},
		"wrong before":               {now: state(fw), next: state(fw)},
		"deleted with the reference": {now: state(fw, addresses), next: state(using())},
		"deleted under a module that cannot run": {now: state(down, addresses), next: state(down), conflict: true,
			want: "module fw, which cannot run now, names set bad"},
		"another set goes under it": {now: state(down, set("other", "ports")), next: state(down)},
		"no selector":               {next: state(using(toServices("role in"))), want: "spec.config.rules[0].dst: "},
		"room":                      {now: state(db, full[1:]...), next: state(db, full[1:]...)},
		"no room for a selector": {now: state(db, full[1:]...), next: state(cache, full[1:]...), conflict: true,
			want: "rules[0].dst: the kernel has room for 1023 sets and selectors of services, and has 1023"},
		"no room for a set": {now: state(db, full[1:]...), next: state(db, full...), conflict: true,
			want: "set s0: the kernel has room"},
		"sets that nothing needs": {now: state(nil, full...), next: state(nil, append(full, addresses)...)},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(c.now, c.next)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			var conflict *apierrors.Conflict
			if errors.As(err, &conflict) != c.conflict {
				t.Errorf("a conflict: %t, want %t", !c.conflict, c.conflict)
			}
		})
	}
}
