// SPDX-License-Identifier: Apache-2.0

// Package inference runs models of the classifier in the kernel by test runs: the same engine as in the data plane,
// with nothing around it. No packet meets it. It needs root, or CAP_BPF and CAP_NET_ADMIN.
package inference

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/sdk/model"
)

// ErrNotBuilt is returned by a program that was built without the compiled engine.
var ErrNotBuilt = errors.New("the inference engine is not built in; run `make bpf`, then build again")

// Kernel is the engine, loaded.
type Kernel struct {
	coll  *ebpf.Collection
	slots *model.Slots
	frame []byte // the features, followed by the decision in the result
}

// Open loads the engine.
func Open() (*Kernel, error) {
	spec, err := object()
	if err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load the engine: %w", err)
	}
	return &Kernel{coll, model.NewSlots(coll.Maps["models"], coll.Maps["active"]), make([]byte, 8*model.MaxFeatures)}, nil
}

func object() (*ebpf.CollectionSpec, error) {
	data, err := fs.ReadFile(bpf.Objects(), "modules/classifier/inference/engine.bpf.o")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotBuilt
	}
	if err != nil {
		return nil, err
	}
	return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(data))
}

// Close removes it.
func (k *Kernel) Close() { k.coll.Close() }

// Load puts a model in the place of the one before.
func (k *Kernel) Load(p *model.Packed) error { return k.slots.Load(model.Live, p) }

// Decide runs the model once on features in the order in which it was packed.
func (k *Kernel) Decide(features []int64) (d model.Decision, err error) {
	clear(k.frame)
	for i, v := range features {
		binary.NativeEndian.PutUint64(k.frame[8*i:], uint64(v))
	}
	out := make([]byte, len(k.frame))
	action, err := k.coll.Programs["decide"].Run(&ebpf.RunOptions{Data: k.frame, DataOut: out, Repeat: 1})
	if err != nil {
		return d, fmt.Errorf("test run: %w", err)
	}
	if action != 2 {
		return d, fmt.Errorf("test run: no model was loaded, or the engine failed: %d", action)
	}
	_, err = binary.Decode(out, binary.NativeEndian, &d)
	return d, err
}

// How long is measured: so many pairs of runs, each about so long. The quickest run counts, as the least disturbed.
const (
	timedRuns = 9
	budget    = 5 * time.Millisecond
)

// Nanoseconds is what an inference takes with the features of the last Decide, without the call into the program.
func (k *Kernel) Nanoseconds() (float64, error) { return k.measure("infer", "nothing") }

// Sources are those of the published network.
const Sources = 12

// Window is what the evaluation of a window takes on the packets that end it: what they take beyond being counted.
func (k *Kernel) Window() (float64, error) { return k.window("count_and_evaluate", "count") }

// WindowLookUp is what it takes when each source has to be looked up for it.
func (k *Kernel) WindowLookUp() (float64, error) { return k.window("look_up_and_evaluate", "nothing") }

func (k *Kernel) window(program, without string) (float64, error) {
	for key := range uint64(Sources) {
		counters := [8]uint32{uint32(key), 3, 1, 6} // followed by those of the window's begin
		if err := k.coll.Maps["sources"].Put(key, counters); err != nil {
			return 0, err
		}
	}
	return k.measure(program, without)
}

// measure is what a program takes beyond another one.
func (k *Kernel) measure(what, without string) (float64, error) {
	var least [2]float64
	for range timedRuns {
		for i, program := range []string{what, without} {
			repeat := uint32(1000) // the first time nothing is known of how long it takes
			if least[i] > 0 {
				repeat += uint32(float64(budget) / least[i])
			}
			ns, err := k.time(program, repeat)
			if err != nil {
				return 0, err
			}
			if least[i] == 0 || ns < least[i] {
				least[i] = ns
			}
		}
	}
	return max(1, least[0]-least[1]), nil
}

// time is by the kernel's own clock, in whole ns: the call around it takes milliseconds.
func (k *Kernel) time(program string, repeat uint32) (float64, error) {
	action, took, err := k.coll.Programs[program].Benchmark(make([]byte, 64), int(repeat), nil)
	if err != nil || action != 2 {
		return 0, fmt.Errorf("test run of %s: %d, %w", program, action, err)
	}
	return float64(took.Nanoseconds()), nil
}
