// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otellog "go.opentelemetry.io/otel/log"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
)

// What is requested of the agent at most at a time: all that it keeps of changes and events, and so many drops that a
// flood does not fill the collector.
const (
	maxChanges = 1000
	maxEvents  = 500
	maxDrops   = 1000
)

// follower creates log records of changes, events and drops since the last poll.
type follower struct {
	agent *client.Client
	to    otellog.Logger

	started             bool  // the last ones below are known
	change, event, drop int64 // numbers, and the kernel's time of the drop
	repeated            int   // how often the last change was refused again
}

// follow looks each interval until ctx ends, and again then. What was before the first time is not exported.
func follow(ctx context.Context, agent *client.Client, to otellog.Logger, interval time.Duration, log *slog.Logger) {
	f := &follower{agent: agent, to: to}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for failed := false; ; {
		err := f.poll(ctx, interval)
		if err != nil && !failed {
			log.Warn("the agent sends nothing; trying again", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			_ = f.poll(context.WithoutCancel(ctx), lastExport)
			return
		case <-tick.C:
		}
	}
}

func (f *follower) poll(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var changes []v1.ChangeRecord
	var drops []v1.TracedPacket
	if err := f.agent.Call(ctx, "GET", fmt.Sprintf("/v1/changes?limit=%d", maxChanges), nil, &changes); err != nil {
		return err
	}
	events, err := f.events(ctx)
	if err != nil {
		return err
	}
	if err := f.agent.Call(ctx, "GET", fmt.Sprintf("/v1/drops?count=%d", maxDrops), nil, &drops); err != nil {
		return err
	}
	if len(changes) > 0 && changes[0].Number < f.change || len(events) > 0 && events[len(events)-1].Number < f.event {
		f.change, f.event = 0, 0 // they count from 1 again, as after a purge
	}
	before := *f
	for _, c := range slices.Backward(changes) { // the newest comes first
		if c.Number > before.change || c.Number == before.change && c.Repeated > before.repeated {
			f.change, f.repeated = c.Number, c.Repeated
			f.emit(ctx, recordOfChange(c))
		}
	}
	for _, e := range events {
		if e.Number > before.event {
			f.event = e.Number
			f.emit(ctx, recordOfEvent(e))
		}
	}
	for _, p := range drops {
		if p.Monotonic > before.drop {
			f.drop = p.Monotonic
			f.emit(ctx, recordOfDrop(p))
		}
	}
	f.started = true
	return nil
}

func (f *follower) events(ctx context.Context) (all []v1.Event, err error) {
	body, err := f.agent.Stream(ctx, fmt.Sprintf("/v1/events?limit=%d", maxEvents))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var e v1.Event
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
}

func (f *follower) emit(ctx context.Context, r otellog.Record) {
	if f.started {
		f.to.Emit(ctx, r)
	}
}

// newRecord leaves attributes without a value out.
func newRecord(name string, at time.Time, severity otellog.Severity, body string, attributes ...attribute.KeyValue) (
	r otellog.Record) {
	r.SetEventName(name)
	r.SetTimestamp(at)
	r.SetObservedTimestamp(time.Now())
	r.SetSeverity(severity)
	r.SetSeverityText(severity.String())
	r.SetBody(attribute.StringValue(body))
	for _, a := range attributes {
		if a.Value.Type() != attribute.STRING || a.Value.AsString() != "" {
			r.AddAttributes(a)
		}
	}
	return r
}

func recordOfChange(c v1.ChangeRecord) otellog.Record {
	var what []string
	var text []string
	for _, one := range c.Changes {
		what = append(what, one.Kind+"/"+one.Name)
		text = append(text, fmt.Sprintf("%s %s %s", one.Action, one.Kind, one.Name))
	}
	severity, body := otellog.SeverityInfo, strings.Join(text, ", ")
	if c.Outcome == v1.OutcomeRefused {
		severity, body = otellog.SeverityWarn, "refused: "+c.Error
	}
	return newRecord("kerb.change", c.Time, severity, body, attribute.Int64("kerb.change.number", c.Number),
		attribute.String("kerb.change.by", c.By), attribute.String("kerb.change.owner", c.Owner),
		attribute.String("kerb.change.outcome", c.Outcome), attribute.Int64("kerb.change.took_nanoseconds", c.Took),
		attribute.Int("kerb.change.repeated", c.Repeated),
		attribute.StringSlice("kerb.resources", what))
}

func recordOfEvent(e v1.Event) otellog.Record {
	return newRecord("kerb.event", e.Time, otellog.SeverityInfo, e.Message, attribute.Int64("kerb.event.number", e.Number),
		attribute.String("kerb.resource.kind", e.Kind), attribute.String("kerb.resource.name", e.Name),
		attribute.String("kerb.event.type", e.Type), attribute.String("kerb.event.reason", e.Reason),
		attribute.Int("kerb.event.count", e.Count))
}

// recordOfDrop has the attributes of OpenTelemetry's conventions for addresses and ports.
func recordOfDrop(p v1.TracedPacket) otellog.Record {
	last := v1.TraceStep{}
	if len(p.Steps) > 0 {
		last = p.Steps[len(p.Steps)-1]
	}
	attributes := []attribute.KeyValue{attribute.String("kerb.service", p.Service),
		attribute.String("network.interface.name", p.Interface), attribute.String("kerb.direction", p.Direction),
		attribute.String("kerb.module", last.Module), attribute.String("kerb.drop.reason", last.Reason),
		attribute.String("kerb.note", last.Note), attribute.String("kerb.note.value", noteValue(last)),
		attribute.String("network.transport", p.Protocol)}
	attributes = append(attributes, endpointOf("source", p.Source)...)
	attributes = append(attributes, endpointOf("destination", p.Destination)...)
	return newRecord("kerb.drop", p.Time, otellog.SeverityInfo, fmt.Sprintf("%s dropped %s %s > %s: %s",
		last.Module, p.Protocol, p.Source, p.Destination, last.Reason), attributes...)
}

// noteValue returns the value of a note like in captures: its name, or else its number.
func noteValue(s v1.TraceStep) string {
	if s.Note == "" || s.Name != "" {
		return s.Name
	}
	return strconv.FormatUint(s.Value, 10)
}

// endpointOf takes an address with or without a port.
func endpointOf(side, text string) []attribute.KeyValue {
	host, portText, err := net.SplitHostPort(text)
	if err != nil {
		return []attribute.KeyValue{attribute.String(side+".address", text)}
	}
	port, _ := strconv.Atoi(portText)
	return []attribute.KeyValue{attribute.String(side+".address", host), attribute.Int(side+".port", port)}
}
