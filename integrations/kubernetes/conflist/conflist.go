// SPDX-License-Identifier: Apache-2.0

// Package conflist appends kerb-cni to the plugins of a node's CNI network, and keeps it there.
//
// Runtimes use the configuration that sorts first. The package writes such a file: the network of the primary plugin
// (flannel, bridge, ...) with kerb-cni at the end. It does not change the primary's file, so that its installer may
// rewrite it at any time, and removing Kerb's file restores the network.
//
// The file remains while the primary's is missing, for example while an installer replaces it: otherwise pods would
// start without Kerb during this time.
package conflist

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// File is the name of Kerb's configuration.
const File = "00-kerb.conflist"

// Network describes the CNI network of a node.
type Network struct {
	Dir    string // of configurations
	Bin    string // directory of plugins; if empty, none is installed
	Plugin string // the type of the plugin, and the name of its program
	Socket string // of the agent
}

// entry is the plugin in the list. It records which content of the primary the list was made of.
type entry struct {
	Type    string `json:"type"`
	Socket  string `json:"socket"`
	Primary string `json:"primary"`
	Digest  string `json:"primaryDigest"`
}

// ErrNoPrimary is returned by Install if the node has no CNI network that could be extended.
var ErrNoPrimary = errors.New("no configuration of a network is there: install flannel or another CNI network; " +
	"until then, the runtime reports NetworkNotReady")

// Install copies the program and writes the configuration unless both are up to date. It returns ErrBusy while another
// process runs Watch.
func (n Network) Install() error {
	lock, err := n.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	return n.install()
}

func (n Network) install() error {
	if err := n.installProgram(); err != nil {
		return fmt.Errorf("install %s: %w", n.Plugin, err)
	}
	if err := n.installConfiguration(); err != nil {
		return fmt.Errorf("write %s: %w", n.path(), err)
	}
	return nil
}

// Uninstall removes the configuration, and then the program, which the runtime needs until then.
func (n Network) Uninstall() error {
	lock, err := n.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := removeIfExists(n.path()); err != nil {
		return err
	}
	if n.Bin != "" {
		if err := removeIfExists(filepath.Join(n.Bin, n.Plugin)); err != nil {
			return err
		}
	}
	return removeIfExists(lock.Name())
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (n Network) path() string { return filepath.Join(n.Dir, File) }

// installProgram copies the running program.
func (n Network) installProgram() error {
	if n.Bin == "" {
		return nil
	}
	want, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	path := filepath.Join(n.Bin, n.Plugin)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := os.MkdirAll(n.Bin, 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, want, 0o755)
}

func (n Network) installConfiguration() error {
	now, err := readList(n.path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		now = nil // not a list: it is written again
	}
	own := now.entry(n.Plugin)
	primary, err := n.primary(own.Primary)
	if err != nil {
		return err
	}
	want := entry{n.Plugin, n.Socket, primary.name, primary.digest}
	if own == want { // others, such as service meshes, may have added plugins of theirs
		return restrict(n.path(), primary.perm)
	}
	text, err := primary.with(want)
	if err != nil {
		return fmt.Errorf("%s: %w", primary.name, err)
	}
	return atomicfile.Write(n.path(), text, primary.perm)
}

// restrict takes permissions from a file that perm does not include.
func restrict(path string, perm fs.FileMode) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&^perm == 0 {
		return err
	}
	return os.Chmod(path, info.Mode().Perm()&perm)
}

// primary returns the network that the runtime would use without Kerb: the first valid file in sort order. While the
// previous primary is incomplete, no other file replaces it.
func (n Network) primary(before string) (*list, error) {
	names, err := n.files()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		l, err := readList(filepath.Join(n.Dir, name))
		switch {
		case err == nil && name < File:
			return nil, fmt.Errorf("%s sorts before it, so that the runtime would use that network without Kerb: rename it",
				name)
		case err == nil:
			return l, nil
		case name == before:
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil, ErrNoPrimary
}

// files returns the configurations but Kerb's, in the order of runtimes.
func (n Network) files() ([]string, error) {
	all, err := os.ReadDir(n.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range all {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) && e.Name() != File {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// list is the configuration of a network, with all fields that it has.
type list struct {
	name, digest string
	perm         fs.FileMode
	fields       map[string]json.RawMessage
	plugins      []json.RawMessage
}

// readList reads a list of plugins, or the configuration of a single one.
func readList(path string) (*list, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the same file that is read: it may be replaced at any time
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	l := &list{name: filepath.Base(path), digest: hex.EncodeToString(sum[:]), perm: info.Mode().Perm()}
	if err := json.Unmarshal(text, &l.fields); err != nil {
		return nil, err
	}
	var name string
	if err := json.Unmarshal(l.fields["name"], &name); err != nil || name == "" {
		return nil, errors.New("the network has no name")
	}
	if _, single := l.fields["type"]; single {
		l.plugins = []json.RawMessage{text}
		l.fields = map[string]json.RawMessage{"name": l.fields["name"], "cniVersion": l.fields["cniVersion"]}
	} else if err := json.Unmarshal(l.fields["plugins"], &l.plugins); err != nil || len(l.plugins) == 0 {
		return nil, errors.New("the network has no plugins")
	}
	return l, nil
}

// entry returns the plugin of a type, or the zero entry.
func (l *list) entry(plugin string) (e entry) {
	if l == nil {
		return e
	}
	for _, p := range l.plugins {
		var found entry
		if json.Unmarshal(p, &found) == nil && found.Type == plugin {
			e = found
		}
	}
	return e
}

// with returns the text of the list with a plugin at its end, and nowhere else.
func (l *list) with(last entry) ([]byte, error) {
	plugins := slices.DeleteFunc(slices.Clone(l.plugins), func(p json.RawMessage) bool {
		var other entry
		return json.Unmarshal(p, &other) == nil && other.Type == last.Type
	})
	text, err := json.Marshal(last)
	if err != nil {
		return nil, err
	}
	if l.fields["plugins"], err = json.Marshal(append(plugins, text)); err != nil {
		return nil, err
	}
	if l.fields["cniVersion"] == nil {
		delete(l.fields, "cniVersion")
	}
	text, err = json.MarshalIndent(l.fields, "", "  ")
	return append(text, '\n'), err
}
