// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/parsed"
	"github.com/kerb-edge/kerb/internal/schema"
	"github.com/kerb-edge/kerb/sdk"
)

// SourceBuiltin is the Source of built-in packages.
const SourceBuiltin = "builtin"

// Size limits of a package's files, in bytes.
const (
	maxManifest = 256 << 10
	maxObject   = 16 << 20
	maxSource   = 4 << 20
)

// Package is a manifest with its compiled data plane.
type Package struct {
	Manifest
	Source       string            // SourceBuiltin, the directory or the reference
	Digest       string            // sha256:<hex> over the manifest's meaning and the bytes of objects and control files
	ControlPlane sdk.Control       // of built-in packages; set by the Catalog
	ControlFiles map[string][]byte // files of the control plane process, by path in the package
	Origin       Origin            // of a pulled package

	manifest *Manifest // keeps the entry in manifests alive

	objects map[string]object // by hook
	whole   map[string]string // by hook: foreign programs that need an adaptor; see OpenForeign
	parsed  map[string]*parsed.Value[*ebpf.CollectionSpec]
	facts   func() *facts
	config  *parsed.Value[*schema.Schema] // of the configuration
}

// Origin describes where a pulled package came from.
type Origin struct {
	Pinned  string   // reference by digest
	Owner   string   // program that requested the pull; empty for an operator
	Signers []string // fingerprints of the trusted keys that signed it under its name
	Waived  bool     // an operator waived the signature
	Problem string   // why it cannot be used; empty if it can
}

// object returns the bytes of a compiled data plane.
type object func() []byte

// readAgain makes objects be read on demand. It is for files that cannot change, such as those embedded in the binary,
// which are in memory anyway.
func (p *Package) readAgain(fsys fs.FS) {
	for _, hook := range p.Hooks {
		p.objects[hook] = func() []byte {
			data, err := fs.ReadFile(fsys, p.Object(hook))
			if err != nil { // it was read before
				panic(err)
			}
			return data
		}
	}
}

// Open reads the package in a directory. It rejects symbolic links that lead out of the directory.
func Open(dir string) (*Package, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("package directory: %w", err)
	}
	defer root.Close()
	return OpenFS(root.FS(), dir)
}

// OpenFS reads the package at the root of fsys. source becomes its Source, and is its name in errors.
func OpenFS(fsys fs.FS, source string) (*Package, error) {
	m, err := readManifest(fsys, source)
	if err != nil {
		return nil, err
	}
	objects := map[string][]byte{}
	for _, hook := range m.Hooks {
		object, err := readFile(fsys, m.Object(hook), maxObject)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("package %s: %s: %w; run: kerb package build %s", m.Name, m.Object(hook), ErrNotBuilt, source)
		}
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", m.Name, err)
		}
		objects[hook] = object
	}
	files, err := readControlFiles(fsys, m)
	if err != nil {
		return nil, err
	}
	return newPackage(m, source, objects, files), nil
}

// ReadManifest reads the manifest of the package in a directory. The package need not be built.
func ReadManifest(dir string) (*Manifest, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("package directory: %w", err)
	}
	defer root.Close()
	return readManifest(root.FS(), dir)
}

func readManifest(fsys fs.FS, source string) (*Manifest, error) {
	data, err := readFile(fsys, ManifestName, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not a package: it has no %s; kerb package new writes one", source, ManifestName)
	}
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", source, err)
	}
	return parsedManifest(source+"/"+ManifestName, data)
}

// manifests caches the parsed manifests of packages in use, by a hash of file name and text. Each change of a module
// reads its package again, and parsing would take most of that time.
var manifests sync.Map // of weak.Pointer[Manifest]

// parsedManifest is ParseManifest with a cache. Callers must not change the result.
func parsedManifest(file string, data []byte) (*Manifest, error) {
	key := sha256.Sum256(append([]byte(file+"\x00"), data...))
	if known, ok := manifests.Load(key); ok {
		if m := known.(weak.Pointer[Manifest]).Value(); m != nil {
			return m, nil
		}
	}
	m, err := ParseManifest(file, data)
	if err != nil {
		return nil, err
	}
	known := weak.Make(m)
	manifests.Store(key, known)
	runtime.AddCleanup(m, func(key [sha256.Size]byte) { manifests.CompareAndDelete(key, known) }, key)
	return m, nil
}

// readFile reads a regular file of at most limit bytes.
func readFile(fsys fs.FS, name string, limit int64) ([]byte, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: larger than %s", name, FormatBytes(limit))
	}
	return data, nil
}

// newPackage returns a package. Objects are parsed on demand and not kept: parsed, they take many times the memory.
func newPackage(m *Manifest, source string, objects, files map[string][]byte) *Package {
	p := &Package{Manifest: *m, manifest: m, Source: source, ControlFiles: files, objects: map[string]object{},
		parsed: map[string]*parsed.Value[*ebpf.CollectionSpec]{}}
	for _, hook := range m.Hooks {
		p.objects[hook] = func() []byte { return objects[hook] }
		p.parsed[hook] = parsed.New(func() (*ebpf.CollectionSpec, error) { return p.load(hook) })
	}
	p.facts = sync.OnceValue(p.readFacts)
	p.config = parsed.New(p.compileSchema)
	p.Digest = p.digest()
	return p
}

// digest returns the digest of the package. It covers the manifest's values, but not comments and order.
func (p *Package) digest() string {
	h := sha256.New()
	manifest, err := json.Marshal(p.Manifest.hashed())
	if err != nil { // it was decoded from JSON
		panic(err)
	}
	add := func(name string, data []byte) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(data)))
		fmt.Fprintf(h, "%s\n", name)
		h.Write(size[:])
		h.Write(data)
	}
	add("kerb package 1", manifest)
	for _, hook := range p.Hooks {
		add(hook, p.objects[hook]())
		if p.whole[hook] != "" {
			add("whole "+adaptorVersion, []byte(p.whole[hook]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.ControlFiles)) {
		add("control "+name, p.ControlFiles[name])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Equal reports whether two packages have the same source and content.
func (p *Package) Equal(o *Package) bool {
	return p.Source == o.Source && p.Digest == o.Digest && reflect.DeepEqual(p.Rank, o.Rank) // see hashed
}

// HasHook reports whether the package has a data plane for the hook.
func (p *Package) HasHook(hook string) bool { return slices.Contains(p.Hooks, hook) }

// Spec returns the checked data plane for a hook (HookTC, HookXDP). The caller may change it, except for Types, which
// is shared because copying it is slow. Errors are *ObjectError, or ErrNoHook if the package does not support the hook.
func (p *Package) Spec(hook string) (*ebpf.CollectionSpec, error) {
	value, ok := p.parsed[hook]
	if !ok {
		return nil, fmt.Errorf("package %s, %s: %w (it has %v)", p.Name, hook, ErrNoHook, p.Hooks)
	}
	spec, err := value.Get()
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", p.Name, err)
	}
	untyped := *spec
	untyped.Types = nil
	fresh := untyped.Copy()
	fresh.Types = spec.Types
	return fresh, nil
}

// ValidateConfig checks config against the schema. Errors are joined *sdk.ConfigError.
func (p *Package) ValidateConfig(config map[string]any) error {
	compiled, err := p.config.Get()
	if err != nil {
		return err
	}
	return validateConfig(compiled, config)
}

// WithDefaults returns a copy of config with the schema's defaults for absent properties. It fails like ValidateConfig.
func (p *Package) WithDefaults(config map[string]any) (map[string]any, error) {
	full := schema.FillDefaults(p.ConfigSchema, config)
	return full, p.ValidateConfig(full)
}

// Files returns the files of the deployed package by path, without the manifest, whose text is not kept.
func (p *Package) Files() map[string][]byte {
	out := maps.Clone(p.ControlFiles)
	if out == nil {
		out = map[string][]byte{}
	}
	for hook, object := range p.objects {
		out[p.Object(hook)] = object()
	}
	return out
}

// Specs returns the checked data planes for all hooks of the package.
func (p *Package) Specs() (map[string]*ebpf.CollectionSpec, error) {
	specs := map[string]*ebpf.CollectionSpec{}
	for _, hook := range p.Hooks {
		spec, err := p.Spec(hook)
		if err != nil {
			return nil, err
		}
		specs[hook] = spec
	}
	return specs, nil
}

func (p *Package) load(hook string) (*ebpf.CollectionSpec, error) {
	file := p.Object(hook)
	spec, err := loadObject(file, p.objects[hook]())
	if err != nil {
		return nil, err
	}
	if program := p.whole[hook]; program != "" {
		return spec, adapt(file, spec, hook, program)
	}
	return spec, p.checkSpec(file, spec)
}

// loadObject parses an ELF object. Errors are *ObjectError, with ErrNotELF for other files and ErrNoBTF for objects
// compiled without -g.
func loadObject(file string, object []byte) (*ebpf.CollectionSpec, error) {
	if !bytes.HasPrefix(object, []byte("\x7fELF")) {
		return nil, &ObjectError{File: file, Err: ErrNotELF}
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if hasNoBTF(spec, object) {
		return nil, &ObjectError{File: file, Err: ErrNoBTF}
	}
	if err != nil {
		return nil, &ObjectError{File: file, Err: fmt.Errorf("%w: %w", ErrNotELF, err)}
	}
	return spec, nil
}

// hasNoBTF reports whether an object, which may have failed to parse, lacks BTF.
func hasNoBTF(spec *ebpf.CollectionSpec, object []byte) bool {
	if spec != nil {
		return spec.Types == nil
	}
	_, err := btf.LoadSpecFromReader(bytes.NewReader(object))
	return errors.Is(err, btf.ErrNotFound)
}
