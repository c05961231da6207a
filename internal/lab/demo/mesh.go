// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// mesh is `kerb demo mesh`: connections within a node skip the network stack.
var mesh = scenario{
	name:  "mesh",
	short: "Connections between services of a node bypass the network stack, with Redis",
	long: "Two services on a bridge, redis-server and redis-benchmark. The accelerator moves their messages from " +
		"socket to socket;\nneither is changed or restarted. Takes half a minute, needs root and redis, and leaves nothing " +
		"behind.",
	needs: map[string]string{"redis-server": "redis-server", "redis-benchmark": "redis-tools"},
	steps: []step{
		{"A cache and an application", (*demo).stepCache},
		{"The agent", (*demo).stepAgent},
		{"Register the services with the agent", (*demo).stepMeshServices},
		{"Bypass the network stack", (*demo).stepAccelerate},
		{"kill -9 the agent", (*demo).stepMeshAlone},
	},
}

const redisPort = 6379

func (d *demo) stepCache(ctx context.Context) error {
	if err := d.clear(true); err != nil {
		return err
	}
	if err := d.enterCgroup(); err != nil {
		return err
	}
	var err error
	if d.cache, err = d.lab.Host("cache", netlab.HostOptions{}); err != nil {
		return err
	}
	if d.app, err = d.lab.Host("app", netlab.HostOptions{}); err != nil {
		return err
	}
	_, err = d.start(d.cache.Namespace, "redis.log", "redis-server", "--port", fmt.Sprint(redisPort), "--bind",
		d.cache.Addr4().String(), "--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir", runDir)
	if err != nil {
		return err
	}
	err = d.await(ctx, "redis-server", func() error {
		c, err := dialIn(d.app.Namespace, "tcp", d.at(d.cache, redisPort), time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		return err
	}
	d.say("A bridge and two network namespaces: redis-server has %s, the application %s. One request at a time:",
		d.cache.Addr4(), d.app.Addr4())
	return d.benchmark(ctx, 10000)
}

// benchmark runs redis-benchmark, and shows its result.
func (d *demo) benchmark(ctx context.Context, requests int) error {
	args := []string{"-h", d.cache.Addr4().String(), "-p", fmt.Sprint(redisPort), "-t", "get", "-c", "1", "-n",
		fmt.Sprint(requests), "-q"}
	d.command("redis-benchmark " + strings.Join(args, " "))
	out, err := d.app.Command(ctx, "redis-benchmark", args...).CombinedOutput()
	result := ""
	for line := range strings.SplitSeq(strings.ReplaceAll(string(out), "\r", "\n"), "\n") { // progress, then the result
		if strings.Contains(line, "requests per second") {
			result = strings.TrimSpace(line)
		}
	}
	d.show(result)
	if err != nil {
		return fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	d.check("Redis replied to all requests", result != "", "%q", out)
	return nil
}

func (d *demo) stepMeshServices(ctx context.Context) error {
	for _, name := range []string{"cache", "app"} {
		if err := d.kerb(ctx, "service", "add", name, "--netns", "/run/netns/"+prefix+"-"+name, "--label",
			"accelerate=yes"); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) stepAccelerate(ctx context.Context) error {
	if err := d.applyExample(ctx, "accelerator.yaml"); err != nil {
		return err
	}
	// The first connections of a program use TCP until the agent has detected the program.
	err := d.await(ctx, "an accelerated connection", func() error {
		out, err := d.app.Command(ctx, "redis-benchmark", "-h", d.cache.Addr4().String(), "-t", "get", "-c", "1", "-n",
			"1000", "-q").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		n, err := d.redirected(ctx)
		if err == nil && n == 0 {
			err = errors.New("all messages still use TCP")
		}
		return errors.Join(err, ctx.Err())
	})
	if err != nil {
		return err
	}
	before, err := d.redirected(ctx)
	if err != nil {
		return err
	}
	if err := d.benchmark(ctx, 10000); err != nil {
		return err
	}
	after, err := d.redirected(ctx)
	d.check("requests and replies moved from socket to socket, bypassing the network stack",
		err == nil && after-before > 10000, "%d messages %v", after-before, err)
	return d.kerb(ctx, "module", "query", "accel", "pairs")
}

// redirected counts messages that skipped the network stack.
func (d *demo) redirected(ctx context.Context) (n uint64, err error) {
	out, err := d.quietly(ctx, "module", "query", "accel", "pairs", "-o", "json")
	if err != nil {
		return 0, err
	}
	var pairs []struct{ Messages uint64 }
	if err := json.Unmarshal([]byte(out), &pairs); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	for _, p := range pairs {
		n += p.Messages
	}
	return n, nil
}

func (d *demo) stepMeshAlone(ctx context.Context) error {
	if err := d.killAgent(); err != nil {
		return err
	}
	if err := d.benchmark(ctx, 10000); err != nil {
		return err
	}
	if err := d.purge(ctx); err != nil {
		return err
	}
	d.say("Plain TCP again:")
	return d.benchmark(ctx, 10000)
}
