// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"path"
	"regexp"
	"strings"
)

// stanza is one paragraph of a Debian control file, by field name; continuation lines are joined with newlines.
type stanza map[string]string

// parseStanzas parses deb822 text: apt's *.sources files and the output of apt-cache show.
func parseStanzas(text string) []stanza {
	var all []stanza
	current, field := stanza{}, ""
	for line := range strings.Lines(text + "\n\n") {
		line = strings.TrimRight(line, "\r\n")
		name, value, isField := strings.Cut(line, ":")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			if len(current) > 0 {
				all = append(all, current)
			}
			current, field = stanza{}, ""
		case line[0] == ' ' || line[0] == '\t':
			current[field] += "\n" + strings.TrimSpace(line)
		case isField:
			field = name
			current[field] = strings.TrimSpace(value)
		}
	}
	return all
}

// mirrors are the URIs of the two Debian archives.
type mirrors struct{ main, security string }

// fill sets unset fields of m from the text of one apt source file, in either of apt's two formats.
func (m *mirrors) fill(text string) {
	for _, uri := range sourceURIs(text) {
		switch strings.TrimSuffix(path.Base(strings.TrimRight(uri, "/")), ".list") {
		case "debian":
			m.main = firstOf(m.main, uri)
		case "debian-security":
			m.security = firstOf(m.security, uri)
		}
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// oneLine matches a line of apt's older source format: deb [options] URI suite component...
var oneLine = regexp.MustCompile(`(?m)^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s`)

func sourceURIs(text string) []string {
	var uris []string
	for _, s := range parseStanzas(text) {
		if s["Enabled"] != "no" {
			uris = append(uris, strings.Fields(s["URIs"])...)
		}
	}
	for _, m := range oneLine.FindAllStringSubmatch(text, -1) {
		uris = append(uris, m[1])
	}
	return uris
}

// spec is a requested kernel: "6.1", "6.1-rt", "newest".
type spec struct {
	name    string
	series  string // "6.1"; empty for the newest
	flavour string // the suffix of Debian's package names: "cloud-amd64", "rt-arm64", "amd64", "arm64-16k"
}

var specForm = regexp.MustCompile(`^(newest|\d+\.\d+)(-rt|-cloud|-generic|-16k)?$`)

func parseSpecs(names []string, a arch) ([]spec, error) {
	var specs []spec
	for _, name := range names {
		m := specForm.FindStringSubmatch(name)
		if m == nil || m[2] == "-16k" && a.name != "arm64" {
			return nil, fmt.Errorf("kernel %q: want a series such as 6.1, or newest, "+
				"perhaps with -rt, -generic or (on arm64) -16k", name)
		}
		s := spec{name: name, series: m[1], flavour: "cloud-" + a.name}
		switch m[2] {
		case "-rt":
			s.flavour = "rt-" + a.name
		case "-generic":
			s.flavour = a.name
		case "-16k":
			s.flavour = a.name + "-16k"
		}
		if s.series == "newest" {
			s.series = ""
		}
		specs = append(specs, s)
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("no kernels asked for")
	}
	return specs, nil
}

// metas returns the meta packages that may lead to the kernel.
func (s spec) metas() []string {
	names := []string{"linux-image-" + s.flavour}
	if s.series != "" {
		names = append(names, "linux-image-"+s.series+"-"+s.flavour)
	}
	return names
}

// matches reports whether a version of a Debian kernel package belongs to the series.
func (s spec) matches(version string) bool {
	return s.series == "" || strings.HasPrefix(version, s.series+".")
}

// concrete reports whether name is an image of the series itself, not a meta package, debug symbols or an unsigned
// build.
func (s spec) concrete(name string) bool {
	rest, ok := strings.CutPrefix(name, "linux-image-"+s.series+".")
	rest, flavoured := strings.CutSuffix(rest, "-"+s.flavour)
	return ok && s.series != "" && flavoured && !strings.HasSuffix(rest, "-cloud") && !strings.HasSuffix(rest, "-rt")
}

// newestOf returns the stanza with the highest version that the spec accepts, or nil if there is none.
func (s spec) newestOf(all []stanza) stanza {
	var best stanza
	for _, st := range all {
		if s.matches(st["Version"]) && (best == nil || versionNewer(st["Version"], best["Version"])) {
			best = st
		}
	}
	return best
}

func versionNewer(a, b string) bool {
	return exec.Command("dpkg", "--compare-versions", a, "gt", b).Run() == nil
}

// pkgVersion is a package with an exact version, or without one the newest of the name.
type pkgVersion struct{ name, version string }

// String returns the package in the format of apt-get.
func (p pkgVersion) String() string {
	if p.version == "" {
		return p.name
	}
	return p.name + "=" + p.version
}

// kernelPart matches the packages that contain kernel files; since 7.0 the image depends on binary and modules.
var kernelPart = regexp.MustCompile(`(linux-(?:image|binary|modules)-\d[^\s,]*) \(= ([^)\s]+)\)`)

// kernelParts returns the packages with kernel files that a stanza depends on.
func kernelParts(s stanza) []pkgVersion {
	var parts []pkgVersion
	for _, m := range kernelPart.FindAllStringSubmatch(s["Depends"], -1) {
		parts = append(parts, pkgVersion{m[1], m[2]})
	}
	return parts
}
