// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// flood is the program of a container that floods its gateway.
var flood string

func TestMain(m *testing.M) {
	os.Exit(nodetest.Main(m, func(dir string) error {
		flood = filepath.Join(dir, "flood")
		return gobuild.Build(flood, "./testdata/flood")
	}))
}

// machine is a node with a container runtime, all of whose files are in one directory.
type machine struct {
	*nodetest.Node
	runtime, dir, socket string
	options              []string // of kerb containers hook; nil: no hook

	api *exec.Cmd // the runtime's service
}

// cgroups is a script for runtimes with a directory. The network namespaces that they mount are visible outside.
const cgroups = cgrouptest.MountScript + `dir=$1; shift
`

// Resource limits are low, because some machines do not let tests raise them.
const (
	podman = cgroups + `export CONTAINERS_CONF=$dir/containers.conf
hooks=$(test -d $dir/hooks.d && echo "--hooks-dir $dir/hooks.d")
exec podman $hooks --root $dir/root --runroot $dir/run --tmpdir $dir/tmp --storage-driver vfs --cgroup-manager cgroupfs \
	--events-backend file --network-config-dir $dir/net --runtime crun "$@"`
	podmanConf = `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
cgroups = "disabled"
`
	dockerd = cgroups + `exec dockerd --config-file $dir/daemon.json --data-root $dir/root --exec-root $dir/run --pidfile $dir/pid \
	--storage-driver vfs --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /$(basename $(dirname $dir)) \
	--live-restore --default-ulimit nofile=1024:1024 --host "$1"`
	// ctr has no options for the directories of CNI's plugins, configuration and state.
	ctrWithCNI = `dir=$1; shift; mount --make-rprivate / || exit 1
for of in etc opt var/lib; do mount --bind $dir/cni/$of /$of || exit 1; done
exec ctr "$@"`
	containerdDaemon = cgroups + `exec containerd --config $dir/config.toml`
)

// programs lists the required programs of each runtime.
var programs = map[string][]string{"docker": {"dockerd", "docker", "runc"}, "podman": {"podman", "crun"},
	"containerd": {"containerd", "ctr", "runc"}}

func newMachine(t *testing.T, runtime string, hook ...string) *machine {
	t.Helper()
	n := nodetest.New(t)
	for _, program := range append(programs[runtime], "busybox") {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: scripts/setup containers installs it", program)
		}
	}
	m := &machine{Node: n, runtime: runtime, dir: filepath.Join(n.Dir, runtime), options: hook}
	m.socket = filepath.Join(m.dir, "api.sock")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(m.dir, "rootfs/bin")
	for _, do := range []func() error{
		func() error { return os.MkdirAll(bin, 0o755) },
		exec.Command("cp", busybox, flood, bin).Run,
		m.configure,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	n.Configure(fmt.Sprintf("containers: {runtime: %s, socket: %s}\n", runtime, m.socket))
	t.Cleanup(m.stopRuntime)
	m.serve()
	if runtime != "containerd" {
		rootfs := filepath.Join(m.dir, "rootfs.tar")
		if out, err := exec.Command("tar", "-cf", rootfs, "-C", filepath.Dir(bin), "bin").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		m.do("import", rootfs, image)
	}
	t.Cleanup(m.removeAll)
	return m
}

// configure writes the configurations of the runtime, with the hook as in docs/containers.md.
func (m *machine) configure() error {
	files := map[string]string{"daemon.json": "{}", "containers.conf": podmanConf,
		"config.toml": fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"+
			"[grpc]\n  address = %q\n", filepath.Join(m.dir, "root"), filepath.Join(m.dir, "state"), m.socket)}
	if m.options != nil {
		text, err := os.ReadFile("../../docs/containers.md")
		if err != nil {
			return err
		}
		blocks := regexp.MustCompile("(?s)```(?:json|text)\n(\\{.*?|#!.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) != 3 {
			return fmt.Errorf("docs/containers.md has %d configurations of runtimes", len(blocks))
		}
		for i, name := range []string{"daemon.json", "hooks.d/kerb.json", "kerb-runc"} {
			files[name] = m.adapt(blocks[i][1], name != "kerb-runc")
		}
	}
	for name, text := range files {
		path := filepath.Join(m.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			return err
		}
	}
	return nil
}

// adapt replaces the program, the socket and the options of a configuration in the documentation.
func (m *machine) adapt(config string, list bool) string {
	quote, sep := "", " "
	if list {
		quote, sep = `"`, `, `
	}
	quoted := func(words ...string) string { return quote + strings.Join(words, quote+sep+quote) + quote }
	return strings.NewReplacer("/usr/bin/kerb", nodetest.Kerb,
		quoted("containers")+sep, quoted("--socket", m.Socket(), "containers")+sep,
		quoted("--fail-closed"), quoted(m.options...)).Replace(config)
}

const image = "kerb.test/busybox"

// inMounts prepares a program with the cgroup file system mounted where it expects it.
func (m *machine) inMounts(script string, args ...string) *exec.Cmd {
	return m.Lab.Node().Command(context.Background(), "unshare", append([]string{"-m", "--propagation", "unchanged",
		"sh", "-c", script, "sh", m.dir}, args...)...)
}

// do runs a command as the runtime's user.
func (m *machine) do(args ...string) string {
	m.T.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.T.Fatalf("%s %s: %v: %s", m.runtime, strings.Join(args, " "), err, out)
	}
	return out
}

func (m *machine) try(args ...string) (string, error) {
	var cmd *exec.Cmd
	switch m.runtime {
	case "docker":
		cmd = exec.Command("docker", append([]string{"--host", "unix://" + m.socket}, args...)...)
	case "podman":
		cmd = m.inMounts(podman, args...)
	case "containerd":
		cmd = exec.Command("ctr", append([]string{"--address", m.socket}, args...)...)
		if _, err := os.Stat(filepath.Join(m.dir, "cni")); err == nil { // ctr then also removes the CNI network
			cmd = m.inMounts(ctrWithCNI, append([]string{"--address", m.socket}, args...)...)
		}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// serve runs the runtime's API, and waits until it responds.
func (m *machine) serve() {
	m.T.Helper()
	m.api = m.inMounts(podman, "system", "service", "--time", "0", "unix://"+m.socket)
	switch m.runtime {
	case "docker":
		m.api = m.inMounts(dockerd, "unix://"+m.socket)
	case "containerd":
		m.api = m.inMounts(containerdDaemon)
	}
	log, err := os.Create(filepath.Join(m.dir, "api.log"))
	if err != nil {
		m.T.Fatal(err)
	}
	defer log.Close()
	m.api.Stdout, m.api.Stderr = log, log
	if err := m.api.Start(); err != nil {
		m.T.Fatal(err)
	}
	m.Eventually(m.runtime+" answers", func() bool {
		_, err := newRuntime(Options{Runtime: m.runtime, Socket: m.socket}).running(context.Background())
		return err == nil
	})
}

func (m *machine) stopRuntime() {
	if m.api == nil {
		return
	}
	_ = m.api.Process.Signal(syscall.SIGTERM)
	_ = m.api.Wait()
	m.api = nil
	// dockerd leaves the parent of the containers' cgroups
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		_ = os.Remove(filepath.Join(root, filepath.Base(m.Dir)))
	}
}

// run starts a container that waits.
func (m *machine) run(name string, args ...string) {
	m.T.Helper()
	if out, err := m.start(name, []string{"/bin/busybox", "sleep", "1000"}, args...); err != nil {
		m.T.Fatalf("%s: %v: %s", name, err, out)
	}
}

// start starts a container with a command. Containers of containerd use the network of the lab's host of that name.
func (m *machine) start(name string, command []string, args ...string) (string, error) {
	run := []string{"run", "--detach", "--stop-signal", "KILL", "--name", name}
	if m.runtime == "containerd" {
		run = m.ctr(name)
		if m.options != nil {
			run = append(run, "--runc-binary", filepath.Join(m.dir, "kerb-runc"))
		}
		if !slices.Contains(args, "--with-ns") && !slices.Contains(args, "--net-host") &&
			!slices.Contains(args, "--cni") {
			run = append(run, "--with-ns", "network:"+m.Host(name).Path())
		}
		run = append(append(run, args...), "--rootfs", filepath.Join(m.dir, "rootfs"), name)
		return m.try(append(run, command...)...)
	}
	return m.try(append(append(append(run, args...), image), command...)...)
}

// ctr starts a container of containerd with the machine's file system, in the test's directory, and with a cgroup below
// the one that stopRuntime removes.
func (m *machine) ctr(name string) []string {
	return []string{"run", "--detach", "--runc-root", filepath.Join(m.dir, "runc"), "--cpu-shares", "0", "--cgroup",
		"/" + filepath.Base(m.Dir) + "/" + name}
}

// removeAll removes all containers, in order of their dependencies.
func (m *machine) removeAll() {
	m.T.Helper()
	if m.runtime == "containerd" {
		for _, namespace := range strings.Fields(m.do("namespaces", "list", "--quiet")) {
			for _, id := range strings.Fields(m.do("--namespace", namespace, "containers", "list", "--quiet")) {
				m.remove(namespace, id)
			}
		}
		return
	}
	for _, filter := range []string{"name=of-", "name="} {
		if ids := strings.Fields(m.do("ps", "--all", "--quiet", "--filter", filter)); len(ids) > 0 {
			m.do(append([]string{"rm", "--force"}, ids...)...)
		}
	}
}

// remove removes a container of containerd.
func (m *machine) remove(namespace, id string) {
	_, _ = m.try("--namespace", namespace, "tasks", "kill", "--signal", "KILL", id)
	m.Eventually(id+" ends", func() bool {
		out, err := m.try("--namespace", namespace, "tasks", "delete", id)
		return err == nil || strings.Contains(out, "not found")
	})
	m.do("--namespace", namespace, "containers", "delete", id)
}

// services returns the agent's services by name.
func (m *machine) services() map[string]v1.Service {
	var list []v1.Service
	m.Must("GET", "/v1/services", nil, &list)
	out := map[string]v1.Service{}
	for _, s := range list {
		out[s.Metadata.Name] = s
	}
	return out
}

// awaitServices waits until the services are these and have an interface.
func (m *machine) awaitServices(names ...string) map[string]v1.Service {
	m.T.Helper()
	var got map[string]v1.Service
	m.Eventually(fmt.Sprintf("the services are %v", names), func() bool {
		got = m.services()
		for _, name := range names {
			if s, ok := got[name]; !ok || s.Status == nil || len(s.Status.Links) != 1 {
				return false
			}
		}
		return len(got) == len(names)
	})
	return got
}

func (m *machine) integration() v1.Condition {
	var s v1.NodeStatus
	m.Must("GET", "/v1/status", nil, &s)
	for _, c := range s.Conditions {
		if c.Type == "Integrations" {
			return c
		}
	}
	return v1.Condition{}
}

// reaches reports whether a container answers the node.
func (m *machine) reaches(name string) bool {
	m.T.Helper()
	address := strings.TrimSpace(m.do("inspect", "--format", "{{.NetworkSettings.IPAddress}}", name))
	return m.Lab.Node().Command(context.Background(), "busybox", "ping", "-c", "1", "-W", "1", address).Run() == nil
}

func TestDocker(t *testing.T) { checkLifecycle(newMachine(t, "docker")) }
func TestPodman(t *testing.T) { checkLifecycle(newMachine(t, "podman")) }

// checkLifecycle checks that containers are services with their labels, with modules, from their start to their end,
// also while the runtime is down.
func checkLifecycle(m *machine) {
	t := m.T
	before, shop1, other := m.runtime+"-before", m.runtime+"-shop-1", m.runtime+"-taken"
	m.run("before", "--label", "app=web")
	m.Start()
	if !m.reaches("before") {
		t.Fatal("the container does not answer without modules")
	}
	m.Apply(node.Module("fw", "firewall", "app=web", map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "allow"}}))
	m.awaitServices(before)
	m.run("Shop_1", "--label", "app=shop", "--label", "note=not a label", "--label", "kerb.dev/container=before")
	m.run("of-the-node", "--network", "host")
	m.run("of-shop", "--network", "container:Shop_1")
	m.run("of-none", "--network", "none")
	got := m.awaitServices(before, shop1)
	shop := got[shop1].Metadata
	want := "map[app:shop kerb.dev/container:Shop_1 kerb.dev/found-by:events kerb.dev/runtime:" + m.runtime + "]"
	if shop.Owner != Owner || fmt.Sprint(shop.Labels) != want {
		t.Errorf("the container is %+v", shop)
	}
	m.Eventually("the firewall denies", func() bool { return !m.reaches("before") })
	if !m.reaches("Shop_1") {
		t.Error("the other container does not answer")
	}

	m.do("rename", "before", "after")
	m.Eventually("the service has the new name in its labels", func() bool {
		return m.services()[before].Metadata.Labels[labelName] == "after"
	})
	m.do("restart", "--time", "0", "after")
	m.Eventually("the service of the new network namespace has the new name", func() bool {
		now, ok := m.services()[m.runtime+"-after"]
		return ok && now.Spec != got[before].Spec
	})
	m.awaitServices(m.runtime+"-after", shop1)
	m.Eventually("the firewall denies again", func() bool { return !m.reaches("after") })

	was := m.services()
	m.stopRuntime()
	m.Eventually("the agent says that the runtime is away", func() bool {
		c := m.integration()
		return c.Reason == "NotConnected" && strings.Contains(c.Message, "services stay as they are")
	})
	if now := m.services(); len(now) != 2 || now[shop1].Spec != was[shop1].Spec {
		t.Errorf("while the runtime is away the services are %v", now)
	}
	m.serve()
	m.run("new", "--label", "app=web")
	m.awaitServices(m.runtime+"-after", shop1, m.runtime+"-new")
	m.Eventually("the firewall denies a new container", func() bool { return !m.reaches("new") })

	// a service of the user has the name of the next one
	m.Apply(v1.Service{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: other}, Spec: v1.ServiceSpec{Netns: m.Host("other").Path()}})
	m.run("taken")
	m.run("last")
	m.Eventually("the other one becomes a service", func() bool {
		all := m.services()
		return all[m.runtime+"-last"].Metadata.Owner == Owner && all[other].Metadata.Owner != Owner
	})
	m.Eventually("the agent says why", func() bool {
		c := m.integration()
		return c.Reason == "Refused" && strings.Contains(c.Message, other)
	})
	m.removeAll()
	m.Eventually("no container is a service", func() bool { return len(m.services()) == 1 })
}

// A restart and a kill of the agent change nothing for containers that keep running.
func TestAgentReturns(t *testing.T) {
	m := newMachine(t, "podman")
	m.run("web", "--label", "app=web")
	m.Start()
	before := m.awaitServices("podman-web")
	for i, end := range []func(){m.Stop, m.Kill} {
		end()
		m.run(fmt.Sprint("x", i))
		m.Start()
		m.Eventually("the new container is a service", func() bool { return len(m.services()) > len(before) })
		now := m.services()
		if now["podman-web"].Spec != before["podman-web"].Spec {
			t.Errorf("the service is %+v, and was %+v", now["podman-web"].Spec, before["podman-web"].Spec)
		}
		before = now
	}
}
