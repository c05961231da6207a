// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

// ArtifactType is the artifactType of manifests of packages.
const ArtifactType = "application/vnd.kerb.package.v1"

// annotationDigest has Package.Digest, which identifies the package independently of its archive.
const annotationDigest = "dev.kerb.package.digest"

// Labels of bpfman's image specification: JSON objects from name to type.
const (
	labelPrograms = "io.ebpf.programs"
	labelMaps     = "io.ebpf.maps"
)

// Docker's media types, in images made by older tools.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
)

// blob is content with its description.
type blob struct {
	ocispec.Descriptor
	data []byte
}

func newBlob(mediaType string, data []byte) blob {
	return blob{ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}, data}
}

func jsonBlob(mediaType string, v any) (blob, error) {
	data, err := json.Marshal(v)
	return newBlob(mediaType, data), err
}

// artifact is a package in the form in which registries store it: blobs in the order of upload, the manifest last.
type artifact struct {
	pkg   *pkgs.Package
	blobs []blob
	root  blob
}

// build builds the artifact of the package in a directory. platform is nil if it runs on all platforms.
func build(dir string, platform *ocispec.Platform) (*artifact, error) {
	p, err := pkgs.Open(dir)
	if err != nil {
		return nil, err
	}
	content, err := packageFiles(dir, p)
	if err != nil {
		return nil, err
	}
	layer, diffID, err := pack(content)
	if err != nil {
		return nil, err
	}
	// Check that the archive opens as the same package.
	again, err := openFiles(content, dir)
	if err != nil {
		return nil, err
	}
	if again.Digest != p.Digest {
		return nil, fmt.Errorf("package %s changed while it was read; try again", p.Name)
	}
	labels, err := labelsOf(p)
	if err != nil {
		return nil, err
	}
	config, err := configOf(platform, labels, diffID)
	if err != nil {
		return nil, err
	}
	return assemble(p, config, newBlob(ocispec.MediaTypeImageLayerGzip, layer), platform)
}

// packageFiles returns the manifest as on disk, with comments, and the files that it refers to.
func packageFiles(dir string, p *pkgs.Package) (files, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	content := files(p.Files())
	content[pkgs.ManifestName], err = root.ReadFile(pkgs.ManifestName)
	return content, err
}

// openFiles opens the package in an archive. It rejects files that do not belong to the package, since nothing would
// check them.
func openFiles(content files, source string) (*pkgs.Package, error) {
	p, err := pkgs.OpenFS(content, source)
	if err != nil {
		return nil, err
	}
	known := p.Files()
	for name := range content {
		if _, ok := known[name]; !ok && name != pkgs.ManifestName {
			return nil, fmt.Errorf("%w: %s is no part of package %s", ErrArchive, name, p.Name)
		}
	}
	return p, nil
}

// configOf returns the image configuration (OCI image-spec, config.md). Without a platform the architecture is bpfel:
// bytecode for every little-endian machine.
func configOf(platform *ocispec.Platform, labels map[string]string, diffID digest.Digest) (blob, error) {
	image := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "bpfel"},
		Config: ocispec.ImageConfig{Labels: labels}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}}}
	if platform != nil {
		image.Platform = *platform
	}
	return jsonBlob(ocispec.MediaTypeImageConfig, image)
}

// assemble returns the manifest with artifactType (OCI 1.1), so that registries and tools do not take the package for
// a container image.
func assemble(p *pkgs.Package, config, layer blob, platform *ocispec.Platform) (*artifact, error) {
	root, err := jsonBlob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ArtifactType,
		Config: config.Descriptor, Layers: []ocispec.Descriptor{layer.Descriptor},
		Annotations: map[string]string{
			ocispec.AnnotationTitle: p.Name, ocispec.AnnotationVersion: p.Version, ocispec.AnnotationDescription: p.Description,
			ocispec.AnnotationLicenses: p.License, annotationDigest: p.Digest,
		},
	})
	root.ArtifactType, root.Platform = ArtifactType, platform
	return &artifact{pkg: p, blobs: []blob{config, layer}, root: root}, err
}

// buildIndex joins one package for several platforms.
func buildIndex(dirs map[string]string) (*artifact, error) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		ArtifactType: ArtifactType}
	all := &artifact{}
	for _, name := range sortedKeys(dirs) {
		platform, err := ParsePlatform(name)
		if err != nil {
			return nil, err
		}
		one, err := build(dirs[name], platform)
		if err != nil {
			return nil, err
		}
		if all.pkg != nil && (all.pkg.Name != one.pkg.Name || all.pkg.Version != one.pkg.Version) {
			return nil, fmt.Errorf("%s has %s %s, but another platform has %s %s; an index holds one package",
				name, one.pkg.Name, one.pkg.Version, all.pkg.Name, all.pkg.Version)
		}
		all.pkg = one.pkg
		all.blobs = append(append(all.blobs, one.blobs...), one.root)
		index.Manifests = append(index.Manifests, one.root.Descriptor)
	}
	var err error
	all.root, err = jsonBlob(ocispec.MediaTypeImageIndex, index)
	return all, err
}

// labelsOf returns bpfman's labels for the data plane. A program for both hooks has the type of the first.
func labelsOf(p *pkgs.Package) (map[string]string, error) {
	specs, err := p.Specs()
	if err != nil {
		return nil, err
	}
	programs, maps := map[string]string{}, map[string]string{}
	for _, hook := range slices.Backward(p.Hooks) {
		for name, prog := range specs[hook].Programs {
			programs[name] = hook
			if hook == pkgs.HookSockets {
				programs[name] = snake(prog.Type.String())
			}
		}
		for name, m := range specs[hook].Maps {
			if !strings.HasPrefix(name, ".") {
				maps[name] = mapType(m.Type)
			}
		}
	}
	labels := map[string]string{}
	for label, value := range map[string]map[string]string{labelPrograms: programs, labelMaps: maps} {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		labels[label] = string(text)
	}
	return labels, nil
}

// mapType returns the name of a map type in lower case: PerCPUHash is per_cpu_hash.
func mapType(t ebpf.MapType) string {
	return snake(strings.NewReplacer("PerCPU", "PerCpu", "LRUCPU", "LruPerCpu", "LRU", "Lru", "LPM", "Lpm", "CPU", "Cpu",
		"XSK", "Xsk", "SK", "Sk", "FD", "Fd").Replace(t.String()))
}

// snake converts to snake case: SockOps is sock_ops.
func snake(text string) string {
	var out strings.Builder
	for i, r := range text {
		if i > 0 && r >= 'A' && r <= 'Z' {
			out.WriteByte('_')
		}
		out.WriteString(strings.ToLower(string(r)))
	}
	return out.String()
}
