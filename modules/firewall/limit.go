// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// limitConfig is the limit of a rule, or of its reports.
type limitConfig struct {
	Rate  string `json:"rate"`
	Burst *int64 `json:"burst"`
}

// Limit is how often a rule may match, or be reported; the zero value is no limit.
type Limit struct {
	Interval time.Duration // between packets
	Burst    int64         // packets at once
}

func (l Limit) isSet() bool { return l.Interval != 0 }

func (l Limit) String() string { return fmt.Sprintf("one in %v, burst %d", l.Interval, l.Burst) }

const (
	defaultBurst = 5
	mostBurst    = 1000000
	mostRate     = 10000000 // so that the interval has two digits at least
)

var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// parse reads the limit in a field of a rule.
func (c *limitConfig) parse(field string, fail failure) (Limit, error) {
	count, unit, _ := strings.Cut(c.Rate, "/")
	n, err := strconv.ParseInt(count, 10, 64)
	per := rateUnits[unit]
	if err != nil || n < 1 || n > mostRate || per == 0 {
		return Limit{}, fail(field+".rate", "%q is not a rate such as 10/s, 30/m or 100/h, of at most %d", c.Rate, mostRate)
	}
	l := Limit{Interval: per / time.Duration(n), Burst: defaultBurst}
	if c.Burst != nil {
		l.Burst = *c.Burst
	}
	if l.Burst < 1 || l.Burst > mostBurst {
		return Limit{}, fail(field+".burst", "%d is not between 1 and %d packets", l.Burst, mostBurst)
	}
	return l, nil
}

// rateValue mirrors struct fw_rate, limitValue struct fw_limit.
type rateValue struct{ Interval, Burst uint64 }

type limitValue struct{ Packets, Reports rateValue }

func (l Limit) value() rateValue {
	return rateValue{uint64(l.Interval), uint64(l.Interval) * uint64(l.Burst)}
}

func (f *Firewall) limit(id int) limitValue {
	r := &f.rules[f.limited[id]]
	return limitValue{r.Limit.value(), r.Log.value()}
}

// bucket mirrors struct fw_bucket.
type bucket struct {
	Due        uint64
	Limited    uint64
	Suppressed uint64
}

// readBucket returns how many packets of a slot were over its limits.
func readBucket(maps sdk.Maps, slot uint32) (b bucket, err error) {
	m, err := maps.Get(mapBuckets)
	if err != nil {
		return b, err
	}
	if err := m.Lookup(slot, &b); err != nil {
		return b, fmt.Errorf("read map %s: %w", mapBuckets, err)
	}
	return b, nil
}

// clearSlots resets what a slot has counted for another rule.
func clearSlots(maps sdk.Maps, slots map[uint32]bool) error {
	hits, err := maps.Get(mapHits)
	if err != nil {
		return err
	}
	buckets, err := maps.Get(mapBuckets)
	if err != nil {
		return err
	}
	for slot := range slots {
		if err := hits.Put(slot, make([]Hits, ebpf.MustPossibleCPU())); err != nil {
			return fmt.Errorf("reset hit counter: %w", err)
		}
		if err := buckets.Put(slot, bucket{}); err != nil {
			return fmt.Errorf("reset limit: %w", err)
		}
	}
	return nil
}
