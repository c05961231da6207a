// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bytes"
	"sync"
	"testing"
)

// While a value is replaced as fast as possible, each reply has one of the values whole, with its own ETag.
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
