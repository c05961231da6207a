// SPDX-License-Identifier: Apache-2.0

// Images writes the container image of Kerb: images LAYOUT DIST VERSION [KEY] makes an OCI image layout of the
// programs that `make build` has left in DIST. The image has these files and no distribution, for amd64 and arm64. Each
// platform has a list of its parts (SPDX), by the programs' own build information, and with a key, a signature as
// packages have it.
// Equal programs make an equal image.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"

	kerboci "github.com/kerb-edge/kerb/internal/oci"
)

// programs are what a node and a cluster need. One image has all: they are updated together.
var programs = []string{"kerb", "kerb-cni", "kerb-kube-controller", "kerb-kube-node", "kerb-nri"}

var architectures = []string{"amd64", "arm64"}

// tag names the image in the layout.
const tag = "kerb"

// spdxType is the media type of lists of parts.
const spdxType = "application/spdx+json"

func main() {
	if len(os.Args) < 4 || len(os.Args) > 5 {
		fmt.Fprintln(os.Stderr, "usage: images LAYOUT DIST VERSION [KEY]")
		os.Exit(2)
	}
	key := ""
	if len(os.Args) == 5 {
		key = os.Args[4]
	}
	root, err := write(context.Background(), os.Args[1], os.Args[2], os.Args[3], key)
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	fmt.Println(root)
}

// write makes the layout, which must not be there, and returns the digest of the image.
func write(ctx context.Context, layout, dist, version, key string) (digest.Digest, error) {
	layout, err := filepath.Abs(layout)
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(layout, 0o755); err != nil {
		return "", err // one that is there may have other content
	}
	store, err := oci.NewWithContext(ctx, layout)
	if err != nil {
		return "", err
	}
	b := &builder{ctx: ctx, store: store, dist: dist, version: version}
	root, err := b.index()
	if err != nil {
		return "", err
	}
	if key == "" {
		return root, nil
	}
	signer, err := kerboci.LoadSigner(key)
	if err != nil {
		return "", err
	}
	ref, err := kerboci.ParseReference("oci:" + layout + ":" + tag)
	if err != nil {
		return "", err
	}
	return kerboci.Sign(ctx, ref, signer, "", kerboci.Transport{})
}

// builder adds to a layout.
type builder struct {
	ctx   context.Context
	store *oci.Store
	dist  string // directory of the programs

	version string
}

// put stores content.
func (b *builder) put(d ocispec.Descriptor, data []byte) (ocispec.Descriptor, error) {
	d.Digest, d.Size = digest.FromBytes(data), int64(len(data))
	err := b.store.Push(b.ctx, d, bytes.NewReader(data))
	if errors.Is(err, errdef.ErrAlreadyExists) {
		err = nil
	}
	return d, err
}

func (b *builder) putJSON(d ocispec.Descriptor, v any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return d, err
	}
	return b.put(d, data)
}

// index joins the images of all platforms, and names them.
func (b *builder) index() (digest.Digest, error) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, arch := range architectures {
		manifest, err := b.image(arch)
		if err != nil {
			return "", fmt.Errorf("%s: %w", arch, err)
		}
		index.Manifests = append(index.Manifests, manifest)
	}
	root, err := b.putJSON(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex}, index)
	if err != nil {
		return "", err
	}
	return root.Digest, b.store.Tag(b.ctx, root, tag)
}

// image makes the image of one platform, and the list of its parts, which refers to it.
func (b *builder) image(arch string) (ocispec.Descriptor, error) {
	var none ocispec.Descriptor
	files, list, err := b.programs(arch)
	if err != nil {
		return none, err
	}
	layer, diffID, err := pack(files)
	if err != nil {
		return none, err
	}
	blob, err := b.put(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip}, layer)
	if err != nil {
		return none, err
	}
	platform := ocispec.Platform{OS: "linux", Architecture: arch}
	labels := map[string]string{ocispec.AnnotationTitle: "Kerb", ocispec.AnnotationVersion: b.version,
		ocispec.AnnotationLicenses: license}
	config, err := b.putJSON(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig}, ocispec.Image{Platform: platform,
		Config: ocispec.ImageConfig{Env: []string{"PATH=/usr/bin"}, Cmd: []string{"/usr/bin/kerb", "agent"}, Labels: labels},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}}})
	if err != nil {
		return none, err
	}
	manifest, err := b.putJSON(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest}, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config,
		Layers: []ocispec.Descriptor{blob}, Annotations: labels})
	if err != nil {
		return none, err
	}
	if err := b.parts(manifest, list); err != nil {
		return none, err
	}
	manifest.Platform = &platform
	return manifest, nil
}

// parts adds the list of parts of an image, as an artifact that refers to it (OCI 1.1).
func (b *builder) parts(of ocispec.Descriptor, list *document) error {
	text, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		return err
	}
	layer, err := b.put(ocispec.Descriptor{MediaType: spdxType}, text)
	if err != nil {
		return err
	}
	empty, err := b.put(ocispec.Descriptor{MediaType: ocispec.MediaTypeEmptyJSON}, []byte("{}"))
	if err != nil {
		return err
	}
	_, err = b.putJSON(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: spdxType},
		ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			ArtifactType: spdxType, Config: empty, Layers: []ocispec.Descriptor{layer}, Subject: &of})
	return err
}

// programs reads the programs of one platform.
func (b *builder) programs(arch string) (map[string][]byte, *document, error) {
	files, list := map[string][]byte{}, newDocument(arch, b.version)
	for _, name := range programs {
		data, err := os.ReadFile(filepath.Join(b.dist, name+"-linux-"+arch))
		if err != nil {
			return nil, nil, fmt.Errorf("%w; make build makes it", err)
		}
		if err := list.add(name, arch, data); err != nil {
			return nil, nil, err
		}
		files[name] = data
	}
	list.sort()
	return files, list, nil
}

// pack makes the layer: programs in /usr/bin, and a place for files that a program may need for a moment. Container
// runtimes name network namespaces below /var/run.
func pack(files map[string][]byte) (layer []byte, diffID digest.Digest, err error) {
	var plain, out bytes.Buffer
	w := tar.NewWriter(&plain)
	add := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		err = errors.Join(err, w.WriteHeader(&h))
		_, failed := w.Write(data)
		err = errors.Join(err, failed)
	}
	for _, dir := range []string{"run/", "tmp/", "usr/", "usr/bin/", "var/"} {
		mode := int64(0o755)
		if dir == "tmp/" {
			mode = 0o1777
		}
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: mode}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "var/run", Linkname: "/run", Mode: 0o777}, nil)
	for _, name := range programs {
		add(tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/" + name, Mode: 0o755}, files[name])
	}
	z := gzip.NewWriter(&out)
	err = errors.Join(err, w.Close())
	_, failed := z.Write(plain.Bytes())
	err = errors.Join(err, failed, z.Close())
	return out.Bytes(), digest.FromBytes(plain.Bytes()), err
}
