// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// The .deb installs without a network, runs, is upgraded while a chain stays attached, and leaves nothing behind; so
// does the .rpm. The container has the file system of this machine, with an overlay in memory for writes.
func TestHostPackages(t *testing.T) {
	needContainer(t)
	dist := os.Getenv("KERB_DIST")
	if dist == "" {
		t.Skip("make test-dist runs it")
	}
	deb, bench := newest(t, dist, "kerb_*_"+runtime.GOARCH+".deb"), newest(t, dist, "kerb-bench_*_"+runtime.GOARCH+".deb")
	later := upgraded(t, deb)
	m := bootWith(t, "--directory="+overlay(t), "--bind-ro="+dist+":/dist", "--bind-ro="+filepath.Dir(later)+":/later")
	install := func(files ...string) {
		m.do(append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qy", "--no-install-recommends", "install"},
			files...)...)
	}

	install("/dist/"+filepath.Base(deb), "/dist/"+filepath.Base(bench))
	if got, _ := m.try("systemctl", "is-active", "kerb"); got != "inactive" {
		t.Errorf("the agent is %s after the installation: it is to be started by the operator", got)
	}
	m.startAndApply()
	m.do("kerb", "bench", "--help")
	for _, file := range []string{"/usr/share/man/man1/kerb-agent.1.gz", "/usr/share/bash-completion/completions/kerb",
		"/usr/share/doc/kerb/licenses/Apache-2.0.txt"} {
		m.do("test", "-r", file)
	}
	m.do("setpriv", "--reuid=65534", "--clear-groups", "sh", "-c",
		"ls /usr/share/doc/kerb/examples /usr/share/man/man1/kerb-apply.1.gz")
	m.do("bash", "-c", ". /usr/share/bash-completion/completions/kerb && complete -p kerb")

	before, pid := m.programs(), m.do("systemctl", "show", "--value", "-p", "MainPID", "kerb")
	install("/later/" + filepath.Base(later))
	m.awaitReady("counter")
	if now := m.do("systemctl", "show", "--value", "-p", "MainPID", "kerb"); now == pid || now == "0" {
		t.Errorf("main process %s before the upgrade, %s after it", pid, now)
	}
	if after := m.programs(); after != before {
		t.Errorf("programs %s before the upgrade, %s after it", before, after)
	}

	m.do("apt-get", "-qy", "remove", "kerb-bench", "kerb")
	m.checkGone()
	m.do("test", "-f", "/var/lib/kerb/state.db")
	m.do("apt-get", "-qy", "purge", "kerb")
	for _, path := range []string{"/var/lib/kerb", "/etc/kerb", "/run/kerb"} {
		if out, err := m.try("test", "!", "-e", path); err != nil {
			t.Errorf("%s is left after a purge: %s", path, out)
		}
	}
	if _, err := m.try("getent", "group", "kerb"); err == nil {
		t.Error("the group kerb is left after a purge")
	}

	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	rpm := newest(t, dist, "kerb-[0-9]*."+arch+".rpm")
	m.do("rpm", "--force-debian", "--nodeps", "-i", "/dist/"+filepath.Base(rpm))
	m.startAndApply()
	m.do("rpm", "--force-debian", "-e", "kerb")
	m.checkGone()

	m.do("umount", "/sys/fs/bpf") // as in images that are built without one
	install("/dist/" + filepath.Base(deb))
	m.do("apt-get", "-qy", "purge", "kerb")
	m.checkGone()
}

// overlay returns an overlay of this machine's root directory, without mounts below it; writes are kept in memory.
func overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	mount := func(at, kind, options string) {
		t.Helper()
		must(t, syscall.Mount(kind, at, kind, 0, options))
		t.Cleanup(func() {
			if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", at, err)
			}
		})
	}
	mount(dir, "tmpfs", "mode=755")
	upper, work, root := filepath.Join(dir, "upper"), filepath.Join(dir, "work"), filepath.Join(dir, "root")
	for _, d := range []string{upper, work, root} {
		must(t, os.Mkdir(d, 0o755))
	}
	mount(root, "overlay", "lowerdir=/,upperdir="+upper+",workdir="+work)
	return root
}

// startAndApply starts the installed agent, and applies a module.
func (m *machine) startAndApply() {
	m.Helper()
	m.do("systemctl", "start", "kerb")
	if got := m.do("stat", "-c", "%U:%G %a", "/run/kerb/kerb.sock"); got != "root:kerb 660" {
		m.Errorf("socket: %s", got)
	}
	if _, err := m.try("ip", "netns", "pids", "web"); err != nil {
		m.service()
	}
	m.do("kerb", "service", "add", "web", "--netns", "/run/netns/web", "--label", "app=web")
	m.do("kerb", "apply", "-f", m.file("counter.yaml", manifest("counter", "{}")))
	m.awaitReady("counter")
	m.do("test", "-d", "/sys/fs/bpf/kerb")
}

// checkGone checks that neither the agent nor its kernel objects are left.
func (m *machine) checkGone() {
	m.Helper()
	if got, _ := m.try("systemctl", "is-active", "kerb"); got == "active" {
		m.Error("the agent runs after the removal")
	}
	if left, err := m.try("test", "!", "-e", "/sys/fs/bpf/kerb"); err != nil {
		m.Errorf("pins are left after the removal: %s", left)
	}
	if got, err := m.try("sh", "-c", "command -v kerb"); err == nil {
		m.Errorf("%s is left after the removal", got)
	}
}

// programs returns the ids of the programs of all chains.
func (m *machine) programs() string {
	m.Helper()
	var chains []v1.Chain
	must(m.T, json.Unmarshal([]byte(m.do("kerb", "chain", "list", "-o", "json")), &chains))
	var ids []string
	for _, c := range chains {
		id, err := json.Marshal(c.Program)
		must(m.T, err)
		ids = append(ids, c.ID+"="+string(id))
	}
	if len(ids) == 0 {
		m.Error("no chains")
	}
	return strings.Join(ids, " ")
}

// newest returns the file of a directory that a pattern matches, which must be one.
func newest(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("%s: %d files, want one: make dist", filepath.Join(dir, pattern), len(found))
	}
	return found[0]
}

// upgraded packs the same files as a later version.
func upgraded(t *testing.T, deb string) string {
	t.Helper()
	dir := t.TempDir()
	root, later := filepath.Join(dir, "root"), filepath.Join(dir, "kerb_later.deb")
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	run("dpkg-deb", "-R", deb, root)
	run("sed", "-i", "s/^Version: .*/&.1/", filepath.Join(root, "DEBIAN", "control"))
	run("dpkg-deb", "-Znone", "-b", root, later)
	must(t, os.Chmod(dir, 0o755))
	return later
}
