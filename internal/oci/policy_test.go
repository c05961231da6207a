// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A registry that moves a tag cannot downgrade a node to an older version, even if that is signed.
func TestDowngrade(t *testing.T) {
	host, n, dir := startRegistry(t), newNode(t), limiter(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	target := host + "/acme/limiter:latest"
	versions := []string{"0.9.0", "0.10.0-rc.1", "0.10.0"}
	for _, version := range versions {
		newVersion(t, dir, version)
		push(t, target, dir, signer)
		n.mustPull(target)
	}
	newVersion(t, dir, "0.9.0")
	old := push(t, target, dir, signer)
	if _, err := n.pull(target); !errors.Is(err, ErrDowngrade) || !strings.Contains(err.Error(), "0.9.0") ||
		!strings.Contains(err.Error(), "--allow-downgrade") {
		t.Fatalf("an older version: %v", err)
	}
	if p, err := n.Get(target); err != nil || p.Version != "0.10.0" {
		t.Errorf("the store leads to %+v, %v", p, err)
	}
	n.mustPull(host + "/acme/limiter@" + old.Digest) // a digest is explicit
	if p, err := n.Pull(t.Context(), ref(t, target), Trust{AllowDowngrade: true}, Transport{}); err != nil ||
		p.Version != "0.9.0" {
		t.Errorf("allowed: %+v, %v", p, err)
	}
}

func TestCompareVersions(t *testing.T) {
	sorted := []string{"0.9.0", "0.10.0-2", "0.10.0-10", "0.10.0-alpha", "0.10.0-alpha.1", "0.10.0-rc.1", "0.10.0",
		"1.0.0", "18446744073709551615.0.0"}
	for i, x := range sorted {
		for j, y := range sorted {
			if got := compareVersions(x, y); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s and %s: %d", x, y, got)
			}
		}
	}
}

// A tag that is a version must refer to this version; other tags may refer to any.
func TestTagIsTheVersion(t *testing.T) {
	host, n, dir := startRegistry(t), newNode(t), limiter(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	newVersion(t, dir, "1.2.0")
	for _, tag := range []string{"1.2.0", "v1.2.0", "1.2", "latest"} {
		push(t, host+"/acme/limiter:"+tag, dir, signer)
		n.mustPull(host + "/acme/limiter:" + tag)
	}
	wrong := ref(t, host+"/acme/limiter:1.3.0")
	if _, err := Push(t.Context(), wrong, Source{Dir: dir}, signer, "", Transport{}); !errors.Is(err, ErrVersion) {
		t.Errorf("pushed to another version: %v", err)
	}
	target, err := Transport{}.writer(wrong)
	if err != nil {
		t.Fatal(err)
	}
	d, err := target.Resolve(t.Context(), "latest")
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Tag(t.Context(), d, "1.3.0"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.pull(wrong.String()); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "1.2.0") {
		t.Errorf("pulled from another version: %v", err)
	}
}

// A package with any denied digest is neither pulled nor loaded. An unreadable list denies everything.
func TestDenied(t *testing.T) {
	host, n, dir := startRegistry(t), newNode(t), limiter(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	target := host + "/acme/limiter:1"
	pushed := push(t, target, dir, signer)
	n.mustPull(target)
	p, err := n.Get(target)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(filepath.Dir(n.keys), deniedName)
	other := "sha256:" + strings.Repeat("0", 64)
	for text, want := range map[string]string{
		"# nothing yet\n\n" + other + "\n":             "",
		other + "\n" + pushed.Digest + " # hole in it": "denied on this node",
		p.Digest + "\n": "denied on this node",
		"limiter\n":     "is not a digest",
	} {
		write(t, list, []byte(text))
		_, pulled := n.pull(target)
		_, loaded := n.Get(target)
		for _, err := range []error{pulled, loaded} {
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", text, err)
			}
		}
	}
	write(t, list, nil)
	if err := os.Chmod(list, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Get(target); err == nil {
		t.Error("a list that all can write is believed")
	}
}

// A key that another user could have written is ignored, like with sshd's StrictModes.
func TestKeysAreStrict(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: changes owners")
	}
	_, public := author(t, "acme")
	for name, spoil := range map[string]func(keys, key string) error{
		"": func(_, _ string) error { return nil },
		"is not a regular": func(_, key string) error {
			return errors.Join(os.Rename(key, key+".real"), os.Symlink(key+".real", key))
		},
		"belongs to user 1": func(_, key string) error { return os.Chown(key, 1, 1) },
		"keys belongs to":   func(keys, _ string) error { return os.Chown(keys, 1, 1) },
		"keys is writable":  func(keys, _ string) error { return os.Chmod(keys, 0o775) },
		"kerb is writable":  func(keys, _ string) error { return os.Chmod(filepath.Dir(keys), 0o757) },
		"aside belongs to":  aside,
	} {
		dir := filepath.Join(t.TempDir(), "kerb")
		n := node{NewStore(filepath.Join(dir, "store"), filepath.Join(dir, "keys")), t}
		n.trusts(public)
		if err := spoil(n.keys, filepath.Join(n.keys, "acme.pub")); err != nil {
			t.Fatal(err)
		}
		keys, problems := loadKeys(n.keys)
		if name == "" {
			if len(keys) != 1 || len(problems) != 0 {
				t.Errorf("as it should be: %v %q", keys, problems)
			}
			continue
		}
		if len(keys) != 0 || len(problems) != 1 || !strings.Contains(problems[0], name) {
			t.Errorf("%s: %v %q", name, keys, problems)
		}
	}
}

// aside makes the directory of keys a link into one that another user owns.
func aside(keys, _ string) error {
	other := filepath.Join(filepath.Dir(keys), "aside")
	return errors.Join(os.Mkdir(other, 0o755), os.Rename(keys, filepath.Join(other, "keys")),
		os.Symlink(filepath.Join(other, "keys"), keys), os.Chown(other, 1, 1))
}
