// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

var platformPattern = regexp.MustCompile(`^linux/[a-z0-9]{1,32}$`)

// ParsePlatform parses a platform such as linux/amd64.
func ParsePlatform(text string) (*ocispec.Platform, error) {
	if !platformPattern.MatchString(text) {
		return nil, &apierrors.Invalid{Resource: "platform " + text, Reason: "want for example linux/amd64"}
	}
	os, arch, _ := strings.Cut(text, "/")
	return &ocispec.Platform{OS: os, Architecture: arch}, nil
}

// Node returns the platform of this program.
func Node() ocispec.Platform { return ocispec.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH} }

// choose returns the manifest for a platform from an index.
func choose(index ocispec.Index, want ocispec.Platform) (ocispec.Descriptor, error) {
	var have []string
	for _, d := range index.Manifests {
		if d.Platform == nil {
			continue
		}
		if d.Platform.OS == want.OS && d.Platform.Architecture == want.Architecture {
			return d, nil
		}
		have = append(have, d.Platform.OS+"/"+d.Platform.Architecture)
	}
	return ocispec.Descriptor{}, fmt.Errorf("%w: it is for %s, this node is %s/%s", ErrPlatform,
		cmp.Or(strings.Join(have, ", "), "none"), want.OS, want.Architecture)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
