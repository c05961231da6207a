// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kerb-edge/kerb/modules/classifier/models"
)

// rpl is `kerb demo rpl`: a model in the kernel detects an attacker in a sensor network.
var rpl = scenario{
	name:  "rpl",
	short: "A flooding node of a sensor network, found by a model in the kernel",
	long: "A border router receives 20 s of a simulated RPL network of six nodes, one of which floods it from the " +
		"seventh second on. The\nclassifier detects it with an included model, and drops its packets. Takes half a minute, " +
		"needs root, and cleans up.",
	steps: []step{
		{"A border router and a radio channel", (*demo).stepBorder},
		{"The agent, on the border router", (*demo).stepAgent},
		{"A model in the kernel", (*demo).stepGuard},
		{"The network, with an attacker", (*demo).stepAttack},
		{"Stop the agent, then remove everything", (*demo).stepRemove},
	},
}

// rplCapture is of `kerb-ml generate rpl --seconds 20 --attackers 1 --seed 12`, and attacker what its labels say.
//
//go:embed rpl.pcap.gz
var rplCapture []byte

const (
	attacker     = "fe80::ff:fe00:2"
	capture      = "net.pcap"
	shippedModel = "rpl-floods-1s.json"
)

func (d *demo) stepBorder(context.Context) error {
	if err := d.clear(false); err != nil {
		return err
	}
	border, err := d.host("border", "192.0.2.1/24", "2001:db8::1/64")
	if err != nil {
		return err
	}
	d.node = border.Namespace
	if d.air, err = d.host("air", "192.0.2.2/24", "2001:db8::2/64"); err != nil {
		return err
	}
	r, err := gzip.NewReader(bytes.NewReader(rplCapture))
	if err != nil {
		return err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	d.say("Two network namespaces: the border router, and the radio channel with six nodes.")
	d.say("Five are harmless; %s starts a flood after 6 s.", attacker)
	return os.WriteFile(filepath.Join(runDir, capture), data, 0o644)
}

func (d *demo) stepGuard(ctx context.Context) error {
	data, err := models.Files.ReadFile(shippedModel)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(runDir, shippedModel), data, 0o644); err != nil {
		return err
	}
	d.say("An included model, a forest of ten trees, trained on simulated networks; this network was not among them.")
	if err := d.kerb(ctx, "model", "load", shippedModel); err != nil {
		return err
	}
	return d.applyExample(ctx, "rpl.yaml")
}

func (d *demo) stepAttack(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	blocked, err := d.quietly(ctx, "module", "query", "guard", "blocked")
	d.check("no node is blocked before the attack", err == nil && !strings.Contains(blocked, "fe80:"), "%q %v", blocked,
		err)
	d.command("kerb model send " + capture + " eth0 &")
	air, err := d.start(d.air.Namespace, "air.log", self, "model", "send", filepath.Join(runDir, capture), "eth0")
	if err != nil {
		return err
	}
	d.progress("20 s of the network")
	err = d.await(ctx, "the decision on the attacker", func() error {
		out, err := d.quietly(ctx, "module", "query", "guard", "blocked")
		if err == nil && !strings.Contains(out, attacker) {
			err = fmt.Errorf("blocked: %q", out)
		}
		return errors.Join(err, ctx.Err())
	})
	d.endProgress()
	d.check("the attacker is blocked while it floods", err == nil, "%v", err)
	select {
	case <-air.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	sent := air.ProcessState
	d.check("the whole capture was sent", sent.Success(), "%v: air.log", sent)
	if blocked, err = d.answer(ctx, "module", "query", "guard", "blocked"); err != nil {
		return err
	}
	d.check("of the six nodes, only the attacker is blocked", strings.Contains(blocked, attacker+" ") &&
		strings.Count(blocked, "fe80:") == 1, "%q", blocked)
	if err := d.kerb(ctx, "module", "query", "guard", "stats"); err != nil {
		return err
	}
	drops, err := dropped(ctx, "guard")
	d.check("its packets since then were dropped", sum(drops) > 0, "%v %v", drops, err)
	return nil
}
