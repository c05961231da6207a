// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// alone runs a script on a separate node without this repository and the Go tools, with an installed kerb and the
// packages of the distribution only. The node's interface kerb0 is connected to the namespace client.
const alone = `set -eu -o pipefail
mount -t tmpfs tmpfs "$REPOSITORY"
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/kerb
mount -t tmpfs tmpfs /var/lib/kerb
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
ip netns add client
ip link add kerb0 type veth peer name eth0 netns client
ip addr add 10.98.0.1/24 dev kerb0
ip addr add fd00:98::1/64 dev kerb0 nodad
ip link set kerb0 up
ip -n client addr add 10.98.0.2/24 dev eth0
ip -n client addr add fd00:98::2/64 dev eth0 nodad
ip -n client link set eth0 up
[ ! -e "$PACKAGE/model.json" ] || {
	kerb package new other --control python
	cp other/kerb.py "$PACKAGE"
	kerb model pack "$PACKAGE/model.json" --features length,ttl,port -f "$PACKAGE/model.bin"
}
kerb package build "$PACKAGE"
[ ! -e "$PACKAGE/test.yaml" ] || kerb package test "$PACKAGE"
kerb agent 2> agent.log &
until kerb status > status.txt 2>&1; do sleep 0.2; done
deploy() { # HOOK CONFIG
	cat > module.yaml <<-END
	apiVersion: kerb.dev/v1alpha1
	kind: Module
	metadata: {name: it}
	spec:
	  package: $PACKAGE
	  hook: $1
	  config: $2
	  attach: {interfaces: [kerb0]}
	END
	kerb apply -f module.yaml
}
`

// outside runs a script with a copy of an example in a directory outside the repository.
func outside(t *testing.T, name, script string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bin, src := filepath.Join(dir, "bin"), filepath.Join(dir, name)
	if out, err := exec.Command("go", "build", "-o", bin+"/", "../cmd/kerb").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := os.CopyFS(src, os.DirFS(name)); err != nil {
		t.Fatal(err)
	}
	objects, err := filepath.Glob(filepath.Join(src, "*.o"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range objects {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	// Processes that the script leaves running are killed with its PID namespace.
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
		"bash", "-c", alone+script)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	cmd.Env = []string{"PATH=" + bin + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "PACKAGE=" + src,
		"REPOSITORY=" + repository}
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "agent.log"))
		t.Fatalf("%v\n%s\nagent.log:\n%s", err, out, log)
	}
	return string(out)
}

// A key-value store answers in the kernel, on TC and XDP, over IPv4 and IPv6. No program listens on its port, so that
// requests that pass to the stack are refused.
func TestKVOutside(t *testing.T) {
	out := outside(t, "kv", `
cat > ask <<'END'
exec 3<>"/dev/udp/$1/7777"
printf %s "$2" >&3
timeout 10 dd bs=64 count=1 status=none <&3 | tr '\0' -
END
ask() { echo "[$(ip netns exec client bash ask "$1" "$2" 2>&1 || true)]"; }
for hook in tc xdp; do
	value=$(printf '%-8s' $hook | tr ' ' .)
	deploy $hook '{partial: true, writable: true}'
	ask 10.98.0.1 "Gover   $value"
	ask 10.98.0.1 "Sover   $value"
	ask fd00:98::1 "Gover   $value"
	ask 10.98.0.1 X
done
`)
	for line, times := range map[string]int{"[Nover   --------]": 1, "[Vover   tc......]": 2, "[Vover   xdp.....]": 2,
		"Connection refused": 2} {
		if strings.Count(out, line) < times {
			t.Errorf("the output has no %d times %q:\n%s", times, line, out)
		}
	}
}

// A model classifies packets by features that Kerb does not know: only anomalies are dropped.
func TestJudgeOutside(t *testing.T) {
	out := outside(t, "judge", `
large=$(printf %0128d 0)
send() { ip netns exec client bash -c "printf %s $2 > /dev/udp/10.98.0.1/$1"; }
for hook in tc xdp; do
	deploy $hook '{}'
	for i in 1 2 3; do
		send 9001 $large
		send 53 $large
		send 9001 small
	done
	kerb module drops it | tr -s ' '
	kerb delete -f module.yaml
done
`)
	if strings.Count(out, " odd 3\n") != 2 {
		t.Errorf("want three packets dropped on both hooks:\n%s", out)
	}
}

// A module labels packets by their history, and a class of intercept matches the label, which no condition on a single
// packet could express.
func TestUrgentOutside(t *testing.T) {
	out := outside(t, "urgent", `
cat > classes.yaml <<'END'
apiVersion: kerb.dev/v1alpha1
kind: Module
metadata: {name: classes}
spec:
  package: intercept
  hook: HOOK
  config:
    classes:
      - {name: urgent, match: {protocol: udp, ports: [9000], label: 1}, action: drop}
      - {name: others, match: {protocol: udp, ports: [9000]}, action: pass}
  attach: {interfaces: [kerb0]}
END
send() { ip netns exec client bash -c "printf '\\0\\0\\0\\x$1' > /dev/udp/10.98.0.1/9000"; }
for hook in tc xdp; do
	deploy $hook '{jump: 16}'
	sed "s/HOOK/$hook/" classes.yaml | kerb apply -f -
	for value in 10 18 20 60 68 10; do
		send $value
	done
	kerb intercept classes classes | tr -s ' ' | cut -d ' ' -f 1,4
	sed "s/HOOK/$hook/" classes.yaml | kerb delete -f -
	kerb delete -f module.yaml
done
`)
	if strings.Count(out, "urgent 2\nothers 4\n") != 2 {
		t.Errorf("want two urgent packets of six on both hooks:\n%s", out)
	}
}
