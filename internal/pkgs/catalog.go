// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kerb-edge/kerb/internal/suggest"
	"github.com/kerb-edge/kerb/sdk"
)

// Catalog finds packages by the name of a built-in, an absolute directory, or the reference of a pulled package.
// Built-ins are read once; the others are read and checked at every call, to detect changes on disk.
type Catalog struct {
	controls map[string]sdk.Control
	builtins func() []builtin
	pulled   Pulled
}

// Pulled are the packages from registries that are on this node.
type Pulled interface {
	Names(ref string) bool            // whether ref has the form of a registry reference, pulled or not
	Get(ref string) (*Package, error) // checked; ErrUnknown if it was not pulled
	Each(visit func(*Package)) error  // sequentially; the Description of an unusable package says why
}

type builtin struct {
	name string
	pkg  *Package // nil if err
	err  error
}

// NewCatalog returns a catalog of the packages in the directories of fsys; controls has their control planes by package
// name.
func NewCatalog(fsys fs.FS, controls map[string]sdk.Control) *Catalog {
	c := &Catalog{controls: controls}
	c.builtins = sync.OnceValue(func() []builtin { return c.readBuiltins(fsys) })
	return c
}

// SetPulled adds the packages from registries. Call it before the catalog is used.
func (c *Catalog) SetPulled(p Pulled) { c.pulled = p }

// EachPulled calls visit for the packages from registries, one at a time, since each is in memory as a whole.
func (c *Catalog) EachPulled(visit func(*Package)) error {
	if c.pulled == nil {
		return nil
	}
	return c.pulled.Each(visit)
}

// Builtin lists the packages in the binary by name. Those that cannot be used are left out; Err reports them.
func (c *Catalog) Builtin() []*Package {
	var out []*Package
	for _, b := range c.builtins() {
		if b.err == nil {
			out = append(out, b.pkg)
		}
	}
	return out
}

// Err returns the errors of built-ins. It is nil for a binary that includes all data planes.
func (c *Catalog) Err() error {
	var all []error
	for _, b := range c.builtins() {
		all = append(all, b.err)
	}
	return errors.Join(all...)
}

// Get returns the package that ref refers to, or ErrUnknown.
func (c *Catalog) Get(ref string) (*Package, error) {
	if filepath.IsAbs(ref) {
		return c.joined(Open(filepath.Clean(ref)))
	}
	if c.pulled != nil && c.pulled.Names(ref) {
		return c.joined(c.pulled.Get(ref))
	}
	for _, b := range c.builtins() {
		if b.name == ref {
			return b.pkg, b.err
		}
	}
	return nil, fmt.Errorf("package %q: %w; built-in are %s, and the absolute path of a package directory or the "+
		"reference of a pulled package is one too%s", ref, ErrUnknown, strings.Join(c.names(), ", "),
		suggest.DidYouMean(ref, c.names()))
}

func (c *Catalog) names() (out []string) {
	for _, b := range c.builtins() {
		out = append(out, b.name)
	}
	return out
}

func (c *Catalog) joined(p *Package, err error) (*Package, error) {
	if err == nil {
		err = c.join(p)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// join sets the control plane of a package whose manifest requires a built-in one.
func (c *Catalog) join(p *Package) error {
	if p.Control == nil || !p.Control.Builtin {
		return nil
	}
	control, ok := c.controls[p.Name]
	if !ok {
		return fmt.Errorf("package %s: this build of kerb has no control plane for it", p.Name)
	}
	p.ControlPlane = control
	return nil
}

// readBuiltins reads the packages in the binary. It skips directories without a manifest. The error of a package is
// kept with it, so that the other packages still work.
func (c *Catalog) readBuiltins(fsys fs.FS) []builtin {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return []builtin{{err: err}}
	}
	var out []builtin
	for _, e := range entries {
		sub, err := fs.Sub(fsys, e.Name())
		if err != nil || !e.IsDir() {
			continue
		}
		if _, err := fs.Stat(sub, ManifestName); err != nil {
			continue
		}
		out = append(out, c.readBuiltin(e.Name(), sub))
	}
	return out
}

// readBuiltin reads one package. Its manifest must name the directory that it is in, because modules refer to it by
// this name.
func (c *Catalog) readBuiltin(name string, fsys fs.FS) builtin {
	p, err := OpenFS(fsys, "modules/"+name)
	if err == nil && p.Name != name {
		err = fmt.Errorf("package modules/%s calls itself %s", name, p.Name)
	}
	if err == nil {
		err = c.join(p)
	}
	if err != nil {
		return builtin{name: name, err: err}
	}
	p.Source = SourceBuiltin
	p.readAgain(fsys)
	return builtin{name: name, pkg: p}
}
