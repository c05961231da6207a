// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/lab/depot"
	keys "github.com/kerb-edge/kerb/internal/oci"
)

// author signs packages with a key that the node trusts, and has a registry on the node's loopback.
type author struct {
	*bed
	*depot.Depot
}

func newDepot(b *bed) *author {
	b.T.Helper()
	d, err := depot.New(b.Lab.Node(), b.Node.Node, b.T.TempDir(), func(h http.Handler) http.Handler { return damaging{h} })
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { d.Close() })
	return &author{b, d}
}

// damaging changes layers of repositories named changed.
type damaging struct{ http.Handler }

func (h damaging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/changed/blobs/") {
		h.Handler.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder()
	h.Handler.ServeHTTP(answer, r)
	body := answer.Body.Bytes()
	if len(body) > 0 {
		body[len(body)/2] ^= 1
	}
	_, _ = w.Write(body)
}

// push pushes a package, and returns its reference with digest.
func (d *author) push(repository, version string, signed bool) string {
	d.T.Helper()
	return d.pushOf("../../../modules/counter", repository, version, signed)
}

// pushOf pushes the package in a directory.
func (d *author) pushOf(source, repository, version string, signed bool) string {
	d.T.Helper()
	image, err := d.Push(os.DirFS(source), repository, version, signed)
	if err != nil {
		d.T.Fatal(err)
	}
	return image
}

func (b *bed) packages() (all []v1.Package) {
	b.T.Helper()
	b.Must(http.MethodGet, "/v1/packages", nil, &all)
	return all
}

// stored returns the references of the packages that were pulled for the cluster.
func (b *bed) stored() (out []string) {
	b.T.Helper()
	for _, p := range b.packages() {
		if p.Owner == names.Owner {
			out = append(out, p.Pinned)
		}
	}
	slices.Sort(out)
	return out
}

func (b *bed) packageOf(module string) string {
	var m v1.Module
	if err := b.Get("/v1/modules/"+module, &m); err != nil {
		return err.Error()
	}
	return m.Spec.Package
}

// reported returns the node's report about a module.
func (b *bed) reported(module string) string {
	for _, r := range b.status().Status.Modules {
		if r.Name == module {
			return r.Reason + ": " + r.Message
		}
	}
	return ""
}

func ofImage(image string) string { return "package: {image: " + image + "}, attach: {pods: {}}" }

// A node pulls the packages that modules use, keeps the previous ones, and removes unused ones, but no package that an
// operator has pulled. While the registry is unreachable, running modules keep running.
func TestPackages(t *testing.T) {
	b := newBed(t)
	d := newDepot(b)
	const name = "limit"
	first, second := d.push("acme/limiter", "0.1.0", true), d.push("acme/limiter", "0.2.0", true)
	operators := d.push("acme/own", "0.3.0", true)
	if _, err := d.Kerb("package", "pull", operators, "--config", b.Config, "--state", b.State); err != nil {
		t.Fatal(err)
	}
	runs := func(what, image string, stored ...string) {
		t.Helper()
		slices.Sort(stored)
		b.Eventually(what, func() bool {
			return b.packageOf(name) == image && slices.Equal(b.stored(), stored) && b.reported(name) == ""
		})
	}
	b.module(name, "{"+ofImage(first)+"}")
	runs("the node pulls the package", first, first)
	b.module(name, "{"+ofImage(operators)+"}")
	runs("the operator's", operators, first)
	b.module(name, "{"+ofImage(second)+"}")
	runs("another package", second, second) // the operator's package is the previous one

	d.Depot.Close()
	third := fmt.Sprintf("%s/acme/limiter@sha256:%s", d.Address, strings.Repeat("0", 64))
	b.module(name, "{"+ofImage(third)+"}")
	b.Eventually("the registry is away", func() bool {
		return strings.HasPrefix(b.reported(name), "PackageUnavailable: spec.package.image: ") &&
			strings.Contains(b.reported(name), "refused; the node tries again")
	})
	if got := b.packageOf(name); got != second {
		t.Errorf("the node runs %s", got)
	}
	b.module(name, "{"+ofImage(second)+"}")
	runs("no registry is needed for what the node has", second, second)
	b.module(name, "{"+ofImage(third)+"}")
	if err := d.Open(); err != nil {
		t.Fatal(err)
	}
	b.Eventually("the registry has no such package", func() bool {
		return strings.HasPrefix(b.reported(name), "PackageRefused: spec.package.image: ") &&
			strings.Contains(b.reported(name), "does not exist")
	})
	b.module(name, counter("app: web"))
	b.Eventually("a package that is built in", func() bool { return b.packageOf(name) == "counter" })
	b.api.Must(http.MethodDelete, modulesPath+name, nil, nil)
	b.Eventually("nothing names a package", func() bool { return len(b.stored()) == 0 })
	if err := b.Call(http.MethodDelete, "/v1/packages?owner="+names.Owner+"&source="+operators, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "another owner") {
		t.Errorf("the operator's package was removed: %v", err)
	}
	for _, source := range []string{d.Address + "/acme/limiter:0.1.0", "oci:/tmp@sha256:" + strings.Repeat("0", 64),
		"counter"} {
		err := b.Call(http.MethodPost, "/v1/packages?owner="+names.Owner+"&source="+source, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "REGISTRY/REPOSITORY@sha256:DIGEST") {
			t.Errorf("%s was pulled: %v", source, err)
		}
	}
}

// A package that does not exist, that is not signed by a key of the node, or that was changed, halts a rollout before
// any node has started it, and the status shows the reason.
func TestRefusedPackages(t *testing.T) {
	f := newFleet(t, "limit")
	d := newDepot(f.bed)
	good := d.push("acme/limiter", "0.1.0", true)
	f.module(f.name, "{"+ofImage(good)+"}")
	f.Eventually("the first version runs", func() bool { return f.packageOf(f.name) == good })
	for _, c := range []struct{ what, image, says string }{
		{"absent", d.Address + "/acme/limiter@sha256:" + strings.Repeat("1", 64), "does not exist"},
		{"unsigned", d.push("acme/open", "0.2.0", false), "is not signed"},
		{"changed", d.push("acme/changed", "0.3.0", true), "does not match its digest"},
	} {
		f.module(f.name, fmt.Sprintf("{%s, rollout: {soakSeconds: 0, previous: {package: {image: %q}}}}",
			ofImage(c.image), good))
		f.checks()
		f.Eventually(c.what+": the rollout halts", func() bool {
			m := f.get()
			p := m.Status.Problems
			says := m.Status.Conditions[0]
			return says.Reason == "CheckFailed" && strings.Contains(says.Message, c.says) && len(p) == 1 &&
				p[0].Nodes == 1 && p[0].Reason == "CheckFailed" && strings.Contains(p[0].Message, c.says)
		})
		if m := f.get(); m.Status.Rollout.Begun() || m.Status.Desired != 0 || f.packageOf(f.name) != good {
			t.Errorf("%s: a node has begun: %+v", c.what, m.Status.Rollout)
		}
		if got := f.stored(); !slices.Equal(got, []string{good}) {
			t.Errorf("%s: the node has %v", c.what, got)
		}
	}
}

// A package that a PackageTrust no longer permits keeps running, but is not applied again. For a package that none
// permits, no request is sent to the registry. The keys of a PackageTrust restrict those of the node.
func TestPackageTrust(t *testing.T) {
	b := newBed(t)
	d := newDepot(b)
	const name, path = "limit", "/apis/kerb.dev/v1alpha1/packagetrusts/"
	first, second := d.push("acme/limiter", "0.1.0", true), d.push("other/limiter", "0.2.0", true)
	var p v1.Package
	trust := func(name, spec string) {
		t.Helper()
		if err := b.api.Apply(path+name, "apiVersion: kerb.dev/v1alpha1\nkind: PackageTrust\nmetadata: {name: "+name+
			"}\nspec: "+spec+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	module := func(image string, priority int) {
		t.Helper()
		b.module(name, fmt.Sprintf("{%s, order: {priority: %d}}", ofImage(image), priority))
	}
	runs := func(what, image string, priority int) {
		t.Helper()
		b.Eventually(what, func() bool {
			var m v1.Module
			err := b.Get("/v1/modules/"+name, &m)
			return err == nil && m.Spec.Package == image && m.Spec.Order.Priority == priority && b.reported(name) == ""
		})
	}
	refused := func(what, says string, priority int) {
		t.Helper()
		b.Eventually(what, func() bool {
			return strings.HasPrefix(b.reported(name), "NotPermitted: ") && strings.Contains(b.reported(name), says)
		})
		var m v1.Module
		b.Must(http.MethodGet, "/v1/modules/"+name, nil, &m)
		if m.Spec.Package != first || m.Spec.Order.Priority != priority {
			t.Errorf("%s: the node runs %s with priority %d", what, m.Spec.Package, m.Spec.Order.Priority)
		}
	}
	module(first, 1)
	runs("without a PackageTrust", first, 1)
	trust("acme", "{repositories: ["+d.Address+"/elsewhere/]}")
	module(first, 2)
	refused("the repository is no longer permitted", "add it to spec.repositories", 1)
	trust("acme", "{repositories: ["+d.Address+"/acme/]}")
	runs("it is permitted again", first, 2)
	module(second, 2)
	refused("another repository", "/other/limiter", 2)
	if got := b.stored(); !slices.Equal(got, []string{first}) {
		t.Errorf("the node has %v", got)
	}
	module(first, 2)
	runs("back", first, 2)
	for _, of := range b.packages() {
		if of.Pinned == first {
			p = of
		}
	}
	if len(p.SignedBy) != 1 {
		t.Fatalf("signed by %v", p.SignedBy)
	}
	trust("acme", "{repositories: ["+d.Address+"/acme/], keys: [sha256:"+strings.Repeat("0", 64)+"]}")
	module(first, 3)
	refused("another key", p.SignedBy[0], 2)
	trust("audit", "{repositories: ["+d.Address+"/acme/limiter], keys: ["+p.SignedBy[0]+"]}")
	runs("its key", first, 3)
}

// cosigned copies the package in testdata/cosign, which cosign 3 has signed with its defaults, to a repository.
func (d *author) cosigned(repository string) string {
	d.T.Helper()
	server := httptest.NewServer(d.Content)
	defer server.Close()
	from, err := oci.New("testdata/cosign")
	if err != nil {
		d.T.Fatal(err)
	}
	to, err := remote.NewRepository(strings.TrimPrefix(server.URL, "http://") + "/" + repository)
	if err != nil {
		d.T.Fatal(err)
	}
	to.PlainHTTP = true
	root, err := oras.ExtendedCopy(d.T.Context(), from, "0.1.0", to, "0.1.0", oras.ExtendedCopyOptions{})
	if err != nil {
		d.T.Fatal(err)
	}
	return d.Address + "/" + repository + "@" + root.Digest.String()
}

// What `cosign sign` creates by default, a bundle without a name, counts as a signature for the keys of a PackageTrust
// and of the node only for a package whose own name is the last part of its repository's name.
func TestPackageTrustOfCosign(t *testing.T) {
	b := newBed(t)
	d := newDepot(b)
	const name, path = "pass", "/apis/kerb.dev/v1alpha1/packagetrusts/acme"
	trust := func(keys string) {
		t.Helper()
		if err := b.api.Apply(path, "{apiVersion: kerb.dev/v1alpha1, kind: PackageTrust, metadata: {name: acme}, "+
			"spec: {repositories: ["+d.Address+"/acme/], keys: ["+keys+"]}}"); err != nil {
			t.Fatal(err)
		}
	}
	says := func(what, reason, detail string) {
		t.Helper()
		b.Eventually(what, func() bool {
			got := b.reported(name)
			return strings.HasPrefix(got, reason+": ") && strings.Contains(got, detail)
		})
	}
	fingerprint, err := keys.Fingerprint("testdata/cosign.pub")
	if err != nil {
		t.Fatal(err)
	}
	image := d.cosigned("acme/pass")
	trust(fingerprint)
	b.module(name, "{"+ofImage(image)+"}")
	says("without the key on the node", "PackageRefused", "not by a key")
	text, err := os.ReadFile("testdata/cosign.pub")
	if err == nil {
		err = os.WriteFile(filepath.Join(b.Keys(), "cosign.pub"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.api.Must(http.MethodDelete, modulesPath+name, nil, nil) // makes another attempt due
	b.Eventually("the module is forgotten", func() bool { return b.reported(name) == "" })
	b.module(name, "{"+ofImage(image)+"}")
	b.Eventually("cosign's key is one of the PackageTrust", func() bool {
		return b.packageOf(name) == image && b.reported(name) == ""
	})
	trust("sha256:" + strings.Repeat("0", 64))
	b.module(name, "{"+ofImage(image)+", order: {priority: 1}}")
	says("another key", "NotPermitted", fingerprint)
	trust(fingerprint)
	b.Eventually("its key again", func() bool { return b.reported(name) == "" })
	b.module(name, "{"+ofImage(d.cosigned("acme/other"))+"}")
	says("a repository of another name", "PackageRefused", "in a bundle without a name")
	if got := b.packageOf(name); got != image {
		t.Errorf("the node runs %s", got)
	}
}
