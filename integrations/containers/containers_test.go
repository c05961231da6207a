// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m)) }

// machine is a node with a container runtime, all of whose files are in one directory.
type machine struct {
	*nodetest.Node
	runtime, dir, socket string

	api *exec.Cmd // the runtime's service
}

// cgroups is for runtimes in a directory. The network namespaces that they mount are seen outside.
const cgroups = cgrouptest.MountScript + `dir=$1; shift
`

// Limits of resources are low: not every machine lets tests raise them.
const (
	podman = cgroups + `export CONTAINERS_CONF=$dir/containers.conf
exec podman --root $dir/root --runroot $dir/run --tmpdir $dir/tmp --storage-driver vfs --cgroup-manager cgroupfs \
	--events-backend file --network-config-dir $dir/net --runtime crun "$@"`
	podmanConf = `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
cgroups = "disabled"
`
	dockerd = cgroups + `echo '{}' > $dir/daemon.json
exec dockerd --config-file $dir/daemon.json --data-root $dir/root --exec-root $dir/run --pidfile $dir/pid \
	--storage-driver vfs --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent /$(basename $(dirname $dir)) \
	--live-restore --default-ulimit nofile=1024:1024 --host "$1"`
)

func newMachine(t *testing.T, runtime string) *machine {
	t.Helper()
	n := nodetest.New(t)
	for _, program := range append(map[string][]string{"docker": {"dockerd"}, "podman": {"podman", "crun"}}[runtime],
		"busybox") {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	m := &machine{Node: n, runtime: runtime, dir: filepath.Join(n.Dir, runtime)}
	m.socket = filepath.Join(m.dir, "api.sock")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	rootfs := filepath.Join(m.dir, "rootfs.tar")
	for _, do := range []func() error{
		func() error { return os.Mkdir(m.dir, 0o700) },
		func() error { return os.WriteFile(filepath.Join(m.dir, "containers.conf"), []byte(podmanConf), 0o600) },
		exec.Command("tar", "-cf", rootfs, "--transform", "s,.*,bin/busybox,", "-P", busybox).Run,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	n.Configure(fmt.Sprintf("containers: {runtime: %s, socket: %s}\n", runtime, m.socket))
	t.Cleanup(m.hangUp)
	m.serve()
	m.do("import", rootfs, image)
	t.Cleanup(m.removeAll)
	return m
}

const image = "kerb.test/busybox"

// inMounts prepares a program that has the cgroup file system where it looks for it.
func (m *machine) inMounts(script string, args ...string) *exec.Cmd {
	return m.Lab.Node().Command(context.Background(), "unshare", append([]string{"-m", "--propagation", "unchanged",
		"sh", "-c", script, "sh", m.dir}, args...)...)
}

// do runs a command of the runtime's user.
func (m *machine) do(args ...string) string {
	m.T.Helper()
	cmd := exec.Command("docker", append([]string{"--host", "unix://" + m.socket}, args...)...)
	if m.runtime == "podman" {
		cmd = m.inMounts(podman, args...)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.T.Fatalf("%s %s: %v: %s", m.runtime, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// serve runs the runtime's API, and returns when it answers.
func (m *machine) serve() {
	m.T.Helper()
	m.api = m.inMounts(podman, "system", "service", "--time", "0", "unix://"+m.socket)
	if m.runtime == "docker" {
		m.api = m.inMounts(dockerd, "unix://"+m.socket)
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
		_, err := newRuntime(m.socket).running(context.Background())
		return err == nil
	})
}

func (m *machine) hangUp() {
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
	run := append([]string{"run", "--detach", "--stop-signal", "KILL", "--name", name}, args...)
	m.do(append(run, image, "/bin/busybox", "sleep", "1000")...)
}

// removeAll removes all containers, those that depend on others first.
func (m *machine) removeAll() {
	m.T.Helper()
	for _, filter := range []string{"name=of-", "name="} {
		if ids := strings.Fields(m.do("ps", "--all", "--quiet", "--filter", filter)); len(ids) > 0 {
			m.do(append([]string{"rm", "--force"}, ids...)...)
		}
	}
}

// services are those of the agent, by name.
func (m *machine) services() map[string]v1.Service {
	var list []v1.Service
	m.Must("GET", "/v1/services", nil, &list)
	out := map[string]v1.Service{}
	for _, s := range list {
		out[s.Metadata.Name] = s
	}
	return out
}

// becomes waits until the services are these and have an interface.
func (m *machine) becomes(names ...string) map[string]v1.Service {
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

func TestDocker(t *testing.T) { follows(newMachine(t, "docker")) }
func TestPodman(t *testing.T) { follows(newMachine(t, "podman")) }

// follows: containers are services with their labels, to which modules apply, from their start to their end, while the
// runtime is away too.
func follows(m *machine) {
	t := m.T
	before, shop1, other := m.runtime+"-before", m.runtime+"-shop-1", m.runtime+"-taken"
	m.run("before", "--label", "app=web")
	m.Start()
	if !m.reaches("before") {
		t.Fatal("the container does not answer without modules")
	}
	m.Apply(node.Module("fw", "firewall", "app=web", map[string]any{
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "allow"}}))
	m.becomes(before)
	m.run("Shop_1", "--label", "app=shop", "--label", "note=not a label", "--label", "kerb.dev/container=before")
	m.run("of-the-node", "--network", "host")
	m.run("of-shop", "--network", "container:Shop_1")
	m.run("of-none", "--network", "none")
	got := m.becomes(before, shop1)
	shop := got[shop1].Metadata
	if want := "map[app:shop kerb.dev/container:Shop_1 kerb.dev/runtime:" + m.runtime + "]"; shop.Owner != Owner ||
		fmt.Sprint(shop.Labels) != want {
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
	m.becomes(m.runtime+"-after", shop1)
	m.Eventually("the firewall denies again", func() bool { return !m.reaches("after") })

	was := m.services()
	m.hangUp()
	m.Eventually("the agent says that the runtime is away", func() bool {
		c := m.integration()
		return c.Reason == "NotConnected" && strings.Contains(c.Message, "services stay as they are")
	})
	if now := m.services(); len(now) != 2 || now[shop1].Spec != was[shop1].Spec {
		t.Errorf("while the runtime is away the services are %v", now)
	}
	m.serve()
	m.run("new", "--label", "app=web")
	m.becomes(m.runtime+"-after", shop1, m.runtime+"-new")
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

// A restart of the agent, and a kill, change nothing for containers that run on.
func TestAgentReturns(t *testing.T) {
	m := newMachine(t, "podman")
	m.run("web", "--label", "app=web")
	m.Start()
	before := m.becomes("podman-web")
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
