// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// license is that of programs; their data planes are dual.
const license = "Apache-2.0"

// document is a list of parts as SPDX 2.3 has it in JSON.
type document struct {
	Version     string         `json:"spdxVersion"`
	License     string         `json:"dataLicense"`
	ID          string         `json:"SPDXID"`
	Name        string         `json:"name"`
	Namespace   string         `json:"documentNamespace"`
	Creation    creation       `json:"creationInfo"`
	Packages    []part         `json:"packages"`
	Relations   []relationship `json:"relationships"`
	fingerprint []string       // of all programs: documents of different ones have different names
	version     string         // of Kerb: with -trimpath the programs' build information does not have it
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// part is a program, or a Go module that is linked into one.
type part struct {
	ID        string     `json:"SPDXID"`
	Name      string     `json:"name"`
	Version   string     `json:"versionInfo"`
	Location  string     `json:"downloadLocation"`
	Analyzed  bool       `json:"filesAnalyzed"`
	Concluded string     `json:"licenseConcluded"`
	Declared  string     `json:"licenseDeclared"`
	Copyright string     `json:"copyrightText"`
	Checksums []checksum `json:"checksums,omitempty"`
	External  []external `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const (
	documentID  = "SPDXRef-DOCUMENT"
	noAssertion = "NOASSERTION"
	// epoch is the time of all documents: the same programs have the same list.
	epoch = "1970-01-01T00:00:00Z"
)

func newDocument(arch, version string) *document {
	return &document{Version: "SPDX-2.3", License: "CC0-1.0", ID: documentID, Name: "kerb-linux-" + arch,
		Creation: creation{epoch, []string{"Organization: Kerb"}}, version: version}
}

var notID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

func spdxID(name, version string) string {
	return "SPDXRef-" + notID.ReplaceAllString(name+"-"+version, "-")
}

// add lists a program, and the modules and the standard library that it says it was built of.
func (d *document) add(name, arch string, program []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("%s has no build information of Go: %w", name, err)
	}
	if is := setting(info, "GOARCH"); is != arch {
		return fmt.Errorf("%s is built for %s", name, is)
	}
	sum := sha256.Sum256(program)
	p := part{ID: spdxID(name, ""), Name: name, Version: d.version, Declared: license,
		Checksums: []checksum{{"SHA256", hex.EncodeToString(sum[:])}}}
	d.fingerprint = append(d.fingerprint, p.Checksums[0].Value)
	d.part(p)
	d.relate(documentID, "DESCRIBES", p.ID)
	d.contains(p.ID, "stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.contains(p.ID, m.Path, m.Version)
	}
	return nil
}

// contains lists a module of a program.
func (d *document) contains(program, path, version string) {
	p := part{ID: spdxID(path, version), Name: path, Version: version, Declared: noAssertion,
		External: []external{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}}}
	d.part(p)
	d.relate(program, "STATIC_LINK", p.ID)
}

// part adds what is not there yet.
func (d *document) part(p part) {
	p.Location, p.Concluded, p.Copyright = noAssertion, noAssertion, noAssertion
	if !slices.ContainsFunc(d.Packages, func(q part) bool { return q.ID == p.ID }) {
		d.Packages = append(d.Packages, p)
	}
}

func (d *document) relate(from, kind, to string) {
	d.Relations = append(d.Relations, relationship{from, kind, to})
}

// sort completes the document.
func (d *document) sort() {
	slices.SortFunc(d.Packages, func(a, b part) int { return strings.Compare(a.ID, b.ID) })
	sum := sha256.Sum256([]byte(strings.Join(d.fingerprint, " ")))
	d.Namespace = "https://kerb.dev/spdx/" + d.Name + "-" + hex.EncodeToString(sum[:])
}

func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
