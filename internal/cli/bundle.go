// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/internal/atomicfile"
	"github.com/kerb-edge/kerb/internal/doctor"
	"github.com/kerb-edge/kerb/internal/version"
)

// journalLines is the number of lines from the unit's journal: some hours of an agent with errors.
const journalLines = 5000

// bundleTime is the timeout for each part of a bundle.
const bundleTime = 20 * time.Second

const bundleText = `What "kerb doctor --bundle" found on a node, for those who help its operator.

doctor.txt       what the kernel, the mounts and the unit allow
agent/           answers of the agent: status, resources, chains, changes, metrics
system/          kernel, distribution, kerb.yaml, BPF file systems, interfaces, journal of the unit
missing.txt      what could not be read, and why, if anything

It holds names, addresses, configurations and who changed them. It holds no keys, which configurations name by their
files, and no packets.
`

// bundle collects files in memory, so that the archive is written as a whole or not at all.
type bundle struct {
	files   []bundleFile
	missing bytes.Buffer
}

type bundleFile struct {
	name string
	data []byte
}

func (b *bundle) add(name string, data []byte) { b.files = append(b.files, bundleFile{name, data}) }

// part adds the result of read, or the reason why it is missing.
func (b *bundle) part(ctx context.Context, name string, read func(context.Context) ([]byte, error)) error {
	limited, cancel := context.WithTimeout(ctx, bundleTime)
	defer cancel()
	data, err := read(limited)
	if len(data) > 0 {
		b.add(name, data)
	}
	if err != nil {
		fmt.Fprintf(&b.missing, "%s: %v\n", name, err)
	}
	return ctx.Err()
}

// writeBundle collects information for support. Without a running agent, its part is missing.
func (a *app) writeBundle(ctx context.Context, file string, notes io.Writer, config string,
	checks []doctor.Check) error {
	b := &bundle{}
	var text bytes.Buffer
	if err := doctor.Print(&text, checks, "failures"); err != nil {
		return err
	}
	b.add("README.txt", []byte(bundleText))
	b.add("version.txt", []byte("kerb "+version.Version()+"\n"))
	b.add("doctor.txt", text.Bytes())
	fmt.Fprintln(notes, "asking the agent ...")
	if err := a.addAnswers(ctx, b); err != nil {
		return err
	}
	fmt.Fprintln(notes, "reading the system ...")
	if err := b.addSystem(ctx, config); err != nil {
		return err
	}
	if b.missing.Len() > 0 {
		b.add("missing.txt", b.missing.Bytes())
	}
	data, err := b.archive(file)
	if err != nil {
		return err
	}
	const ownerOnly = 0o600
	if err := atomicfile.Write(file, data, ownerOnly); err != nil {
		return err
	}
	fmt.Fprintf(notes, "%d files in %s; README.txt in it says what they hold\n", len(b.files), file)
	return nil
}

// addAnswers adds responses of the agent's API.
func (a *app) addAnswers(ctx context.Context, b *bundle) error {
	answers := []string{"status", "chains", "packages", "changes?limit=1000"}
	for _, k := range shownKinds() {
		answers = append(answers, k.Plural)
	}
	for _, of := range answers {
		name, _, _ := strings.Cut(of, "?")
		if err := b.part(ctx, "agent/"+name+".json", func(ctx context.Context) ([]byte, error) {
			data, err := a.call(ctx, "GET", "/v1/"+of, nil)
			if err != nil {
				return nil, err
			}
			var out bytes.Buffer
			err = json.Indent(&out, data, "", "  ")
			return out.Bytes(), err
		}); err != nil {
			return err
		}
	}
	return b.part(ctx, "agent/metrics.txt", func(ctx context.Context) ([]byte, error) {
		return a.call(ctx, "GET", "/metrics", nil)
	})
}

// addSystem adds information about the node.
func (b *bundle) addSystem(ctx context.Context, config string) error {
	parts := map[string]func(context.Context) ([]byte, error){
		"system/kernel.txt":     fileAt("/proc/version"),
		"system/os-release.txt": fileAt("/etc/os-release"),
		"system/mounts.txt":     mounts,
		"system/lockdown.txt":   fileAt("/sys/kernel/security/lockdown"),
		"system/kerb.yaml":      fileAt(config),
		"system/journal.txt": output("journalctl", "--unit=kerb", "--no-pager", "--output=short-iso",
			fmt.Sprintf("--lines=%d", journalLines)),
		"system/unit.txt":        output("systemctl", "show", "kerb"),
		"system/interfaces.json": output("ip", "-details", "-json", "address"),
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if err := b.part(ctx, name, parts[name]); err != nil {
			return err
		}
	}
	return nil
}

// archive returns a tar file, compressed if the file name ends accordingly.
func (b *bundle) archive(file string) ([]byte, error) {
	var out bytes.Buffer
	var w io.Writer = &out
	finish := func() error { return nil }
	if strings.HasSuffix(file, ".gz") || strings.HasSuffix(file, ".tgz") {
		z := gzip.NewWriter(&out)
		w, finish = z, z.Close
	}
	t := tar.NewWriter(w)
	now := time.Now()
	for _, f := range b.files {
		header := &tar.Header{Name: path.Join("kerb-bundle", f.name), Mode: 0o644, Size: int64(len(f.data)), ModTime: now}
		if err := t.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := errors.Join(t.Close(), finish())
	return out.Bytes(), err
}

func fileAt(name string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { return os.ReadFile(name) }
}

// mounts returns the mounts of BPF and cgroup file systems.
func mounts(context.Context) (out []byte, err error) {
	data, err := os.ReadFile("/proc/mounts")
	for line := range bytes.Lines(data) {
		if f := bytes.Fields(line); len(f) > 2 && (string(f[2]) == "bpf" || bytes.HasPrefix(f[2], []byte("cgroup"))) {
			out = append(out, line...)
		}
	}
	return out, err
}

// output returns a function that returns the output of a program.
func output(name string, args ...string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) { return exec.CommandContext(ctx, name, args...).Output() }
}
