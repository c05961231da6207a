// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/registry"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// layoutScheme is the prefix of references to image layouts on disk.
const layoutScheme = "oci:"

const defaultTag = "latest"

// Reference identifies an artifact: registry/repository:tag, registry/repository@sha256:digest, or the same with
// oci:/directory instead of registry and repository. Exactly one of Tag and Digest is set.
type Reference struct {
	Layout   string // absolute directory; empty for a registry
	Registry string
	Repo     string
	Tag      string
	Digest   digest.Digest
}

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

const maxTag = 128

// IsReference reports whether text has the form of a reference, valid or not, and is not a directory or the name of a
// built-in.
func IsReference(text string) bool {
	if strings.HasPrefix(text, layoutScheme) {
		return true
	}
	host, rest, ok := strings.Cut(text, "/")
	return ok && rest != "" && !strings.HasPrefix(host, ".") && (host == "localhost" || strings.ContainsAny(host, ".:"))
}

// ParseReference parses a reference. Errors are *apierrors.Invalid.
func ParseReference(text string) (Reference, error) {
	r, err := parseReference(text)
	if err != nil {
		return Reference{}, &apierrors.Invalid{Resource: "reference " + text, Reason: err.Error()}
	}
	return r, nil
}

// parseReference parses REGISTRY/REPOSITORY[:TAG|@DIGEST] or oci:/DIRECTORY[:TAG]. It accepts only sha256, and rejects
// a tag together with a digest, since they could contradict each other.
func parseReference(text string) (Reference, error) {
	if !IsReference(text) {
		return Reference{}, fmt.Errorf("want REGISTRY/REPOSITORY:TAG, REGISTRY/REPOSITORY@sha256:DIGEST or " +
			"oci:/DIRECTORY[:TAG], with a registry such as example.org or localhost:5000")
	}
	place, pin, pinned := strings.Cut(text, "@")
	r := Reference{}
	if pinned {
		r.Digest = digest.Digest(pin)
		if err := r.Digest.Validate(); err != nil || r.Digest.Algorithm() != digest.SHA256 {
			return r, fmt.Errorf("%q is not a digest; want sha256: and 64 hexadecimal digits", pin)
		}
	}
	start := strings.LastIndexByte(place, '/')
	if i := strings.LastIndexByte(place, ':'); i > start {
		r.Tag, place = place[i+1:], place[:i]
		if len(r.Tag) > maxTag || !tagPattern.MatchString(r.Tag) {
			return r, fmt.Errorf("%q is not a tag: up to 128 letters, digits, dots, dashes and underscores, with no dot "+
				"or dash first", r.Tag)
		}
	}
	switch {
	case pinned && r.Tag != "":
		return r, fmt.Errorf("has a tag and a digest; name one of them")
	case !pinned && r.Tag == "":
		r.Tag = defaultTag
	}
	return r, r.setPlace(place)
}

// setPlace sets registry and repository, or the directory of a layout, which must be absolute, since the agent and the
// CLI run in different directories.
func (r *Reference) setPlace(place string) error {
	if dir, ok := strings.CutPrefix(place, layoutScheme); ok {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return fmt.Errorf("%q is not a clean absolute directory", dir)
		}
		r.Layout = dir
		return nil
	}
	r.Registry, r.Repo, _ = strings.Cut(place, "/")
	check := registry.Reference{Registry: r.Registry, Repository: r.Repo}
	if err := check.ValidateRegistry(); err != nil {
		return fmt.Errorf("%q is not a registry", r.Registry)
	}
	if err := check.ValidateRepository(); err != nil {
		return fmt.Errorf("%q is not a repository; they are in lower case", r.Repo)
	}
	return nil
}

// Name returns the reference without tag and digest.
func (r Reference) Name() string {
	if r.Layout != "" {
		return layoutScheme + r.Layout
	}
	return r.Registry + "/" + r.Repo
}

// Base returns the last segment of the name.
func (r Reference) Base() string { return filepath.Base(r.Name()) }

// Target returns the tag or the digest.
func (r Reference) Target() string {
	if r.Digest != "" {
		return r.Digest.String()
	}
	return r.Tag
}

// String returns the canonical form of the reference.
func (r Reference) String() string {
	if r.Digest != "" {
		return r.Name() + "@" + r.Digest.String()
	}
	return r.Name() + ":" + r.Tag
}

// At returns the reference to a digest under the same name.
func (r Reference) At(d digest.Digest) Reference {
	r.Tag, r.Digest = "", d
	return r
}

// identity returns the name that a signature must contain. It is empty for a directory, which may be copied and moved.
func (r Reference) identity() string {
	if r.Layout != "" {
		return ""
	}
	return r.Name()
}

// loopback reports whether the registry is on this machine. It may be used without TLS, since no man in the middle is
// possible.
func (r Reference) loopback() bool {
	host, _, err := net.SplitHostPort(r.Registry)
	if err != nil {
		host = r.Registry
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}
