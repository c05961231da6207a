// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// Packages lists the built-in packages, those that were pulled and those that modules use.
func Packages(catalog *pkgs.Catalog, modules map[string]*Module) (list []v1.Package, err error) {
	out := map[string]v1.Package{}
	for _, p := range catalog.Builtin() {
		out[p.Name] = PackageView(p)
	}
	for _, d := range modules {
		if d.Pkg != nil && d.Pkg.Source != pkgs.SourceBuiltin {
			out[d.Pkg.Source] = PackageView(d.Pkg)
		}
	}
	err = catalog.EachPulled(func(p *pkgs.Package) { // after those of modules: a running one may no longer be trusted
		out[p.Source] = PackageView(p)
	})
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(out)) {
		list = append(list, out[key])
	}
	return list, nil
}

// Package returns a package by name or directory.
func Package(catalog *pkgs.Catalog, modules map[string]*Module, name string) (v1.Package, error) {
	for _, d := range modules {
		if d.Pkg != nil && d.Pkg.Source != pkgs.SourceBuiltin && (d.Pkg.Name == name || d.Pkg.Source == name) {
			return PackageView(d.Pkg), nil
		}
	}
	p, err := catalog.Get(name)
	if err != nil {
		return v1.Package{}, &apierrors.NotFound{Kind: "Package", Name: name}
	}
	return PackageView(p), nil
}

// PackageView returns a package as the API shows it.
func PackageView(p *pkgs.Package) v1.Package {
	return v1.Package{Name: p.Name, Version: p.Version, Digest: p.Digest, Source: p.Source, Description: p.Description,
		Hooks:  p.Hooks,
		Memory: p.Memory(nil), Config: p.ConfigSchema, Capabilities: p.GrantedCapabilities(), Queries: p.Queries,
		Pinned: p.Origin.Pinned, Owner: p.Origin.Owner, SignedBy: p.Origin.Signers, Waived: p.Origin.Waived,
		Problem: p.Origin.Problem}
}
