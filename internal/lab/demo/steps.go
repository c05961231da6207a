// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func steps(keep bool) []step {
	all := []step{
		{"A network with three services", (*demo).stepBuild},
		{"The agent", (*demo).stepAgent},
		{"Register the services with the agent", (*demo).stepServices},
		{"Deploy a counter on all services and a firewall on the servers", (*demo).stepDeploy},
		{"Traffic, and the counters", (*demo).stepTraffic},
		{"Change the firewall while traffic flows", (*demo).stepFirewall},
		{"Change the order of the chain while traffic flows", (*demo).stepOrder},
		{"An invalid change is rejected as a whole", (*demo).stepMistake},
		{"kill -9 the agent, and start it again", (*demo).stepKill},
		{"Metrics", (*demo).stepMetrics},
	}
	if keep {
		return append(all, step{"Keep running", (*demo).stepStay})
	}
	return append(all, step{"Stop the agent, then remove everything", (*demo).stepPurge})
}

func (d *demo) stepBuild(ctx context.Context) error {
	if err := d.clear(true); err != nil {
		return err
	}
	if err := d.build(ctx); err != nil {
		return err
	}
	d.say("A bridge, in a namespace that stands for the node (%s), and three network namespaces:", prefix+"-node")
	d.show(fmt.Sprintf("web     %-10s  HTTP on ports 8080 and 9090\nclient  %-10s  client of the other two\niperf   "+
		"%-10s  iperf3 server\n", d.web.Addr4(), d.client.Addr4(), d.iperf.Addr4()))
	err := errors.Join(d.askWeb(8080), d.askWeb(9090))
	d.check("the client reaches the web server on both ports", err == nil, "%v", err)
	return nil
}

// askWeb makes one request, with a long timeout.
func (d *demo) askWeb(port uint16) error {
	return get(webClient(d.client.Namespace, requestLimit), "http://"+d.at(d.web, port)+"/")
}

// askClosed makes a request that must time out after a second.
func (d *demo) askClosed(port uint16) error {
	return get(webClient(d.client.Namespace, time.Second), "http://"+d.at(d.web, port)+"/")
}

func (d *demo) stepAgent(ctx context.Context) error {
	if err := d.write("kerb.yaml", agentConfig+d.config); err != nil {
		return err
	}
	d.command("export KERB_SOCKET=" + socketPath)
	d.command("kerb agent --config kerb.yaml &")
	if err := d.startAgent(ctx); err != nil {
		return err
	}
	return d.kerb(ctx, "status")
}

func (d *demo) stepServices(ctx context.Context) error {
	for _, s := range []struct{ name, tier string }{{"web", "server"}, {"iperf", "server"}, {"client", "client"}} {
		err := d.kerb(ctx, "service", "add", s.name, "--netns", "/run/netns/"+prefix+"-"+s.name, "--label", "app="+s.name,
			"--label", "tier="+s.tier)
		if err != nil {
			return err
		}
	}
	err := d.await(ctx, "service list", func() error { return d.servicesReady(ctx) })
	if err != nil {
		return err
	}
	return d.kerb(ctx, "service", "list")
}

func (d *demo) servicesReady(ctx context.Context) error {
	out, err := d.quietly(ctx, "service", "list")
	if ready := strings.Count(out, " yes "); err == nil && ready != 3 {
		err = fmt.Errorf("%d of 3 services are ready:\n%s", ready, out)
	}
	return err
}

func (d *demo) stepDeploy(ctx context.Context) error {
	if err := d.write("count.yaml", counterYAML("")); err != nil {
		return err
	}
	if err := d.write("fw.yaml", firewallYAML(allowWeb, allowAdmin, allowIperf)); err != nil {
		return err
	}
	if err := d.kerb(ctx, "apply", "-f", "count.yaml", "-f", "fw.yaml"); err != nil {
		return err
	}
	if err := d.kerb(ctx, "chain", "list"); err != nil {
		return err
	}
	d.say("Packets from a service pass the module nearest to it first, packets to it pass that module last.")
	d.checkOrder(ctx, "web", "egress", "count", "fw")
	d.checkOrder(ctx, "web", "ingress", "fw", "count")
	d.checkOrder(ctx, "client", "ingress", "count")
	if _, err := d.hooks(ctx); err != nil {
		return err
	}
	err := errors.Join(d.askWeb(8080), d.askWeb(9090))
	d.check("the rules allow both ports of the web server", err == nil, "%v", err)
	return nil
}

func (d *demo) checkOrder(ctx context.Context, service, direction string, want ...string) {
	got, err := order(ctx, service, direction)
	d.check(fmt.Sprintf("%s of %s passes %s", direction, service, strings.Join(want, ", then ")), slices.Equal(got, want),
		"%v %v", got, err)
}

func (d *demo) stepTraffic(ctx context.Context) error {
	d.say("From the client: a request to %s every 20 ms, each on a new connection, and iperf3 at %sbit/s.",
		d.at(d.web, 8080), streamRate)
	var err error
	if d.stream, err = d.streamTo(d.iperf); err != nil {
		return err
	}
	d.requests = startRequests(d.client.Namespace, "http://"+d.at(d.web, 8080)+"/")
	d.watch(ctx, 3*time.Second)
	if err := d.kerb(ctx, "top", "--count", "1"); err != nil {
		return err
	}
	for _, service := range []string{"web", "iperf"} {
		in, err := counted(ctx, service, "ingress", "tcp")
		d.check(fmt.Sprintf("the counter saw TCP packets to %s: %d", service, in), in > 0, "%d %v", in, err)
	}
	d.checkTraffic(requestCounts{}, 0)
	return nil
}

// stepFirewall closes one port under traffic, and checks that connections to the other one were not affected.
func (d *demo) stepFirewall(ctx context.Context) error {
	before, second := d.requests.tally(), len(d.stream.seconds())
	drops, err := dropped(ctx, "fw")
	if err != nil {
		return err
	}
	hits, err := ruleHits(ctx, "web")
	if err != nil {
		return err
	}
	d.say("Without the rule for port 9090:")
	if err := d.apply(ctx, "fw.yaml", firewallYAML(allowWeb, allowIperf), true); err != nil {
		return err
	}
	err = d.askClosed(9090)
	d.check("requests to port 9090 time out", isTimeout(err), "%v", err)
	if err := d.trace(ctx, "web", 9090, "fw:drop (policy)"); err != nil {
		return err
	}
	if err := d.kerb(ctx, "module", "drops", "fw"); err != nil {
		return err
	}
	now, err := dropped(ctx, "fw")
	d.check("the firewall reports the drops and their reason", sum(now) > sum(drops), "%v after %v %v", now, drops, err)
	hitsNow, err := ruleHits(ctx, "web")
	d.check(fmt.Sprintf("the hit counter of the rule for port 8080 continues, from %d to %d connections", hits, hitsNow),
		hits > 0 &&
			hitsNow > hits, "%v", err)
	d.checkTraffic(before, second)
	_, err = d.hooks(ctx)
	return err
}

// trace follows one packet through the chain of a service, while matching requests are made.
func (d *demo) trace(ctx context.Context, service string, port uint16, want string) error {
	args := []string{"trace", "--service", service, "--port", fmt.Sprint(port), "--count", "1", "--for", "1m"}
	d.command("kerb " + strings.Join(args, " "))
	var out string
	ended := make(chan error, 1)
	go func() {
		var err error
		out, err = d.quietly(ctx, args...)
		ended <- err
	}()
	for {
		_ = d.askClosed(port) // only sends the packets
		select {
		case err := <-ended:
			d.show(out)
			d.check("the trace shows the verdict for such a packet: "+want, strings.Contains(out, want), "%q", out)
			return err
		default:
		}
	}
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// apply writes a file, optionally shows its diff, and applies it.
func (d *demo) apply(ctx context.Context, name, text string, showDiff bool) error {
	if err := os.WriteFile(runDir+"/"+name, []byte(text), 0o644); err != nil {
		return err
	}
	if showDiff {
		if err := d.kerb(ctx, "diff", "-f", name); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := d.kerb(ctx, "apply", "-f", name); err != nil {
		return err
	}
	d.say("In effect after %d ms.", time.Since(start).Milliseconds())
	return nil
}

const probes = 10

// probeAndCount sends datagrams that no rule allows and returns the increases of the counter and of the firewall's
// drops.
func (d *demo) probeAndCount(ctx context.Context) (seen, denied uint64, err error) {
	seenBefore, deniedBefore, err := seenAndDenied(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := d.probe(d.web, 9999, probes); err != nil {
		return 0, 0, err
	}
	for range 300 { // a busy kernel may take a moment
		if seen, denied, err = seenAndDenied(ctx); err != nil || denied-deniedBefore >= probes {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return seen - seenBefore, denied - deniedBefore, err
}

func seenAndDenied(ctx context.Context) (seen, denied uint64, err error) {
	drops, err := dropped(ctx, "fw")
	if err != nil {
		return 0, 0, err
	}
	seen, err = counted(ctx, "web", "ingress", "udp")
	return seen, sum(drops), err
}

func (d *demo) stepOrder(ctx context.Context) error {
	before, second := d.requests.tally(), len(d.stream.seconds())
	d.say("Packets to web pass the firewall first, so the counter does not see dropped packets. %d datagrams to a closed "+
		"port of web:", probes)
	seen, denied, err := d.probeAndCount(ctx)
	d.check(fmt.Sprintf("the firewall dropped %d, the counter saw none", probes), err == nil && denied == probes &&
		seen == 0,
		"%d dropped, %d counted %v", denied, seen, err)
	d.say("Move the counter, so that packets to web pass it before the firewall:")
	if err := d.apply(ctx, "count.yaml", counterYAML("order: {after: [fw]}"), true); err != nil {
		return err
	}
	d.checkOrder(ctx, "web", "egress", "fw", "count")
	d.checkOrder(ctx, "web", "ingress", "count", "fw")
	d.say("The same %d datagrams again:", probes)
	seen, denied, err = d.probeAndCount(ctx)
	d.check(fmt.Sprintf("the firewall dropped %d, the counter saw %d", probes, probes), err == nil && denied == probes &&
		seen == probes,
		"%d dropped, %d counted %v", denied, seen, err)
	d.watch(ctx, 1500*time.Millisecond)
	d.checkTraffic(before, second)
	return d.kerb(ctx, "chain", "list")
}

func (d *demo) stepMistake(ctx context.Context) error {
	before, err := d.hooks(ctx)
	if err != nil {
		return err
	}
	if err := os.WriteFile(runDir+"/wrong.yaml", []byte(firewallYAML(allowWeb, wrongPort)), 0o644); err != nil {
		return err
	}
	d.command("kerb apply -f wrong.yaml")
	_, err = d.quietly(ctx, "apply", "-f", "wrong.yaml")
	d.show(said(err))
	d.check("the change is rejected; the error names the rule and the field", err != nil &&
		strings.Contains(err.Error(), "rules[1].dstPort"), "%v", err)
	after, err := d.hooks(ctx)
	d.check("the same programs are attached as before", maps.Equal(before, after), "%v, before %v %v", after, before, err)
	return nil
}

// said returns the command's message about invalid input.
func said(err error) string {
	if err == nil {
		return ""
	}
	_, words, _ := strings.Cut(err.Error(), "exit status 2: ")
	return words + "\n"
}

// stepKill shows that traffic and rules work without an agent, and that the next agent adopts the same programs.
func (d *demo) stepKill(ctx context.Context) error {
	before, second := d.requests.tally(), len(d.stream.seconds())
	was, err := d.hooks(ctx)
	if err != nil {
		return err
	}
	d.say("Attached programs: %s.", was)
	pid := d.agent.Process.Pid
	d.command(fmt.Sprintf("kill -9 %d", pid))
	if err := d.agent.stop(syscall.SIGKILL); err != nil {
		return err
	}
	d.say("Now no agent is running.")
	err = d.askClosed(9090)
	d.check("the firewall still blocks requests to port 9090", isTimeout(err), "%v", err)
	d.watch(ctx, 1500*time.Millisecond)
	d.command("kerb agent --config kerb.yaml &")
	if err := d.startAgent(ctx); err != nil {
		return err
	}
	var hits uint64
	var is hooks
	// The agent is ready before it has adopted its modules.
	hitsErr := d.await(ctx, "what ran before", func() (err error) {
		if is, err = d.hooks(ctx); err == nil {
			hits, err = ruleHits(ctx, "web")
		}
		if err == nil && (hits == 0 || !maps.Equal(was, is)) {
			err = fmt.Errorf("%d hits; programs: %s", hits, is)
		}
		return err
	})
	d.watch(ctx, 1500*time.Millisecond)
	is, err = d.hooks(ctx)
	d.check("the new agent adopted the programs: the same ones are on the same hooks", len(is) > 0 &&
		maps.Equal(was, is), "%s, before %s %v", is, was, err)
	hitsNow, err := ruleHits(ctx, "web")
	d.check(fmt.Sprintf("it reads their counters: the rule for port 8080 is at %d connections and continues to count",
		hitsNow),
		hits > 0 && hitsNow > hits,
		"%d, then %d %v", hits, hitsNow, errors.Join(hitsErr, err))
	d.checkTraffic(before, second)
	return nil
}

// String lists hooks in order.
func (h hooks) String() string {
	var all []string
	for _, hook := range slices.Sorted(maps.Keys(h)) {
		all = append(all, fmt.Sprintf("%d on %s", h[hook], hook))
	}
	return strings.Join(all, ", ")
}

// stepMetrics waits for the families: control planes that have just started report theirs a moment later.
func (d *demo) stepMetrics(ctx context.Context) error {
	families := []string{"kerb_counter_packets_total", "kerb_dropped_packets_total", "kerb_firewall_rule_packets_total"}
	var data []byte
	err := d.await(ctx, "metrics", func() (err error) {
		data, err = read(ctx, "/metrics")
		lacks := func(family string) bool { return !bytes.Contains(data, []byte("\n"+family+"{")) }
		if err == nil && slices.ContainsFunc(families, lacks) { // control planes may just have started
			err = errors.New("some are not there yet")
		}
		return err
	})
	if err != nil && data == nil {
		return err
	}
	d.command("curl -s --unix-socket " + socketPath + " http://kerb/metrics | grep '^kerb_'")
	var lines []string
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(line, []byte("kerb_")) && !bytes.Contains(line, []byte("_bucket")) {
			lines = append(lines, strings.TrimSpace(string(line)))
		}
	}
	d.show(strings.Join(excerpt(lines, 24), "\n") + "\n")
	d.say("(%d series in all)", len(lines))
	for _, family := range families {
		held := slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, family) })
		d.check(family+" is exported", held, "%d other series", len(lines))
	}
	return nil
}

// excerpt returns at most three lines of each family, without zeros, up to a limit.
func excerpt(lines []string, enough int) []string {
	taken := map[string]int{}
	var out []string
	for _, line := range lines {
		family, _, _ := strings.Cut(line, "{")
		if strings.HasSuffix(line, " 0") || taken[family] == 3 || len(out) == enough {
			continue
		}
		taken[family]++
		out = append(out, line)
	}
	return out
}

func (d *demo) stepPurge(ctx context.Context) error {
	d.watch(ctx, 500*time.Millisecond)
	all, seconds := d.requests.tally(), d.stream.seconds()
	d.stopTraffic()
	d.say("During the whole demo: %d requests, %d lost, the slowest took %d ms; %d s of iperf3 at %.0f Mbit/s.",
		all.answered+all.lost, all.lost,
		all.slowest.Milliseconds(), len(seconds), mean(seconds))
	d.command(fmt.Sprintf("kill %d", d.agent.Process.Pid))
	if err := d.agent.stop(syscall.SIGTERM); err != nil {
		return err
	}
	err := d.askClosed(9090)
	d.check("modules keep running without the agent: port 9090 stays closed", isTimeout(err), "%v", err)
	if err := d.purge(ctx); err != nil {
		return err
	}
	err = d.askWeb(9090)
	d.check("after the purge, port 9090 replies again", err == nil, "%v", err)
	return nil
}

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}

// environment returns the shell command after which kerb is this program, and connects to the demo's agent.
func environment(program string) string {
	return fmt.Sprintf("export PATH='%s':$PATH KERB_SOCKET=%s", filepath.Dir(program), socketPath)
}

func (d *demo) stepStay(ctx context.Context) error {
	d.say("The demo keeps running until Ctrl-C, or: kill %d. Requests and iperf3 continue. In another terminal, as root:",
		unix.Getpid())
	d.show(fmt.Sprintf(`%s; cd %s
kerb top
kerb service get web
kerb module query fw rules
kerb module drops
ip netns exec %s-client curl -m 2 http://%s/
sed -i 's/8080/9090/' fw.yaml; kerb apply -f fw.yaml
`, environment(d.program), runDir, prefix, d.at(d.web, 8080)))
	<-ctx.Done()
	d.say("Ending.")
	return nil
}
