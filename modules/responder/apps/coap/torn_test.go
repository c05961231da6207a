// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kerb-edge/kerb/modules/responder/app"
)

// While a value is replaced at the maximum rate, each reply has one complete value, with its ETag.
func TestNoTornValue(t *testing.T) {
	for _, h := range hooks {
		t.Run(h.name, func(t *testing.T) {
			config := casesConfig()
			config["duplicates"] = false
			d := load(t, h, config)
			table, err := openTable(d.maps)
			if err != nil {
				t.Fatal(err)
			}
			defer table.close()
			resource, err := table.number(newName(slot, 0, encodePath([]string{"nothing"})))
			if err != nil {
				t.Fatal(err)
			}
			known := map[string]bool{}
			var all []*Value
			for i := range 7 {
				v := newValue(bytes.Repeat([]byte{byte('a' + i)}, 1000-100*i), -1, 60, 0)
				all, known[string(v.ETag[:])+string(v.Data)] = append(all, v), true
			}
			if err := table.put(resource, all[0]); err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			var writer sync.WaitGroup
			writes := 0
			writer.Go(func() {
				for ; ; writes++ {
					select {
					case <-stop:
						return
					default:
					}
					if err := table.put(resource, all[writes%len(all)]); err != nil {
						t.Error(err)
						return
					}
				}
			})
			answered := 0
			for range 5000 {
				reply, verdict := d.send(t, client, serverOf(client), get(path("nothing")...))
				if verdict != Reply {
					continue // replaced twice while it was read
				}
				answered++
				m, err := Read(reply)
				if err != nil || !known[string(m.Options[0].Value)+string(m.Payload)] {
					t.Errorf("torn: %v %x", err, reply)
					break
				}
			}
			close(stop)
			writer.Wait()
			t.Logf("%d answered of 5000, %d values written", answered, writes)
			if answered == 0 || writes < 2 {
				t.Error("nothing was read while something was written")
			}
		})
	}
}

// A request to the previous map set that ends after the next one has started also sets its value there.
func TestLateValue(t *testing.T) {
	d := load(t, hooks[0], map[string]any{"resources": []any{map[string]any{"path": "a", "value": "early"}}})
	table, err := openTable(d.maps)
	if err != nil {
		t.Fatal(err)
	}
	defer table.close()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go coap{}.Run(ctx, app.Live{Maps: d.maps, All: d.placed()})
		synctest.Wait() // it has checked once, and pauses
		name := newName(slot, 0, d.listener.resources[0].path)
		if err := table.settings.Put(name, newSetting([]byte("late"), 0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settled)
		synctest.Wait()
		if v, err := table.get(0); err != nil || string(v.Data) != "late" {
			t.Errorf("answered: %q, %v", v.Data, err)
		}
	})
}
