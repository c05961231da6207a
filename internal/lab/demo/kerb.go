// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
)

// startAgent starts the agent on the demo's node, and waits until it responds.
func (d *demo) startAgent(ctx context.Context) error {
	p, err := d.start(d.node, filepath.Base(logFile), d.program, "agent", "--config", configFile)
	if err != nil {
		return err
	}
	d.agent = p
	return d.await(ctx, "the agent", func() error {
		select {
		case <-p.ended:
			return fmt.Errorf("the agent exited: %v", p.ProcessState)
		default:
			return ask(ctx, "/v1/status", &v1.NodeStatus{})
		}
	})
}

// kerb shows and runs a kerb command, and shows its output. An error contains the command's error message.
func (d *demo) kerb(ctx context.Context, args ...string) error {
	d.command("kerb " + strings.Join(args, " "))
	out, err := d.quietly(ctx, args...)
	d.show(out)
	return err
}

func (d *demo) quietly(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.program, args...)
	cmd.Dir = runDir
	cmd.Env = append(os.Environ(), "KERB_SOCKET="+socketPath)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kerb %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// write writes a file to the demo's directory and shows it.
func (d *demo) write(name, text string) error {
	if err := os.WriteFile(filepath.Join(runDir, name), []byte(text), 0o644); err != nil {
		return err
	}
	d.command("cat " + name)
	d.show(text)
	return nil
}

// read returns the agent's response to a GET request.
func read(ctx context.Context, path string) ([]byte, error) {
	answer, err := client.New(socketPath).Stream(ctx, path)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	return io.ReadAll(answer)
}

// ask reads a view of the agent.
func ask(ctx context.Context, path string, into any) error {
	return client.New(socketPath).Call(ctx, http.MethodGet, path, nil, into)
}

// hooks maps hooks to the programs that run there: "kdemo0 tc-ingress" to a program id.
type hooks map[string]uint32

// hooks reads the running programs, and records them for the final check.
func (d *demo) hooks(ctx context.Context) (hooks, error) {
	var services []v1.Service
	if err := ask(ctx, "/v1/services", &services); err != nil {
		return nil, err
	}
	found := hooks{}
	for _, s := range services {
		if s.Status == nil {
			continue
		}
		for _, link := range s.Status.Links {
			for _, h := range link.Hooks {
				found[link.Interface+" "+h.Hook] = h.Program
				d.recordProgram(h.Program)
			}
		}
	}
	return found, nil
}

// order returns the modules that packets to a service, or from it, pass.
func order(ctx context.Context, service, direction string) ([]string, error) {
	var chains []v1.Chain
	if err := ask(ctx, "/v1/chains", &chains); err != nil {
		return nil, err
	}
	for _, c := range chains {
		for _, p := range c.Points {
			if p.Service == service && c.Direction == direction {
				return c.Modules, nil
			}
		}
	}
	return nil, fmt.Errorf("no %s chain on service %s", direction, service)
}

// dropped returns the packets dropped by a module, by reason.
func dropped(ctx context.Context, module string) (map[string]uint64, error) {
	var m v1.Module
	if err := ask(ctx, "/v1/modules/"+module, &m); err != nil {
		return nil, err
	}
	found := map[string]uint64{}
	for _, drop := range m.Status.Drops {
		found[drop.Reason] = drop.Packets
	}
	return found, nil
}

func sum(counts map[string]uint64) (all uint64) {
	for _, n := range counts {
		all += n
	}
	return all
}

// counted returns the counter's packets of a service in one direction, for a protocol.
func counted(ctx context.Context, service, direction, protocol string) (uint64, error) {
	return metric(ctx, "kerb_counter_packets_total", map[string]string{"service": service, "direction": direction,
		"protocol": protocol})
}

// ruleHits returns the number of packets that a firewall rule decided. Packets of tracked connections do not count.
func ruleHits(ctx context.Context, rule string) (uint64, error) {
	return metric(ctx, "kerb_firewall_rule_packets_total", map[string]string{"rule": rule})
}

// metric sums the counters of a family that have all the labels.
func metric(ctx context.Context, family string, labels map[string]string) (uint64, error) {
	body, err := client.New(socketPath).Stream(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return 0, err
	}
	var n float64
	for _, m := range families[family].GetMetric() {
		if hasLabels(m, labels) {
			n += m.GetCounter().GetValue()
		}
	}
	return uint64(n), nil
}

func hasLabels(m *dto.Metric, want map[string]string) bool {
	all := map[string]string{}
	for _, l := range m.GetLabel() {
		all[l.GetName()] = l.GetValue()
	}
	for name, value := range want {
		if all[name] != value {
			return false
		}
	}
	return true
}

// showLog shows the end of the agent's log, for a demo that could not continue.
func (d *demo) showLog() {
	data, err := os.ReadFile(logFile)
	if err != nil || len(data) == 0 {
		return
	}
	d.say("The last lines of the agent's log:")
	d.show(string(data[max(0, len(data)-2000):]))
}
