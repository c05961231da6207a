// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

func openEvents(t *testing.T, dir string) *Events {
	return OpenEvents(dir, func(err error) { t.Errorf("not stored: %v", err) })
}

func read(t *testing.T, e *Events, r v1.EventsRequest) (all []v1.Event) {
	t.Helper()
	if r.Limit == 0 {
		r.Limit = 2 * MaxEvents
	}
	if err := e.Read(t.Context(), r, func(v v1.Event) error { all = append(all, v); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func ready(service, reason string) v1.Event {
	return v1.Event{Kind: "Service", Name: service, Type: "Ready", Reason: reason}
}

// What is repeated is one event, with its number of times, unless long ago; and a flood of events has an end.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		e := openEvents(t, dir)
		for i := range 3 {
			gone := ready("web", "NotFound")
			gone.Message = fmt.Sprint("attempt ", i)
			e.Add(gone)
			e.Add(ready("web", "Found"))
			time.Sleep(time.Minute)
		}
		all := read(t, e, v1.EventsRequest{})
		if len(all) != 2 || all[0].Count != 3 || all[1].Count != 3 || all[0].Message != "attempt 2" || all[1].Number != 6 ||
			all[0].Time.Sub(all[0].First) != 2*time.Minute {
			t.Fatalf("a service that comes and goes: %+v", all)
		}
		time.Sleep(repeatWithin)
		e.Add(ready("web", "NotFound"))
		for _, why := range []string{"a", "b", "b"} {
			e.Add(v1.Event{Kind: "Module", Name: "fw", Type: v1.EventChange, Reason: "Refused", Message: why})
		}
		if all = read(t, e, v1.EventsRequest{}); len(all) != 5 || all[2].Count != 1 ||
			all[4].Count != 2 {
			t.Fatalf("long after, and refusals for two reasons: %+v", all)
		}
		if all = read(t, e, v1.EventsRequest{Kind: "module", Name: "fw", Limit: 1}); len(all) != 1 ||
			all[0].Message != "b" {
			t.Errorf("the last of fw: %+v", all)
		}
		long := ready("x", "NotFound")
		long.Message = strings.Repeat("é", maxMessage)
		for i := range MaxEvents + 7 {
			long.Name = fmt.Sprint("s", i)
			e.Add(long)
		}
		if all = read(t, e, v1.EventsRequest{}); len(all) != MaxEvents || all[0].Name != "s7" ||
			len(all[0].Message) > maxMessage {
			t.Errorf("%d events from %s on", len(all), all[0].Name)
		}
		e.Flush()
		e.Flush()
		if again := read(t, openEvents(t, dir), v1.EventsRequest{}); len(again) != MaxEvents || again[0] != all[0] {
			t.Errorf("read again: %d, %+v", len(again), again[0])
		}
	})
}

// One object whose events differ takes none of those of others away, and its words are cut.
func TestEventsOfOneObjectHaveAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openEvents(t, t.TempDir())
		e.Add(ready("web", "NotFound"))
		long := strings.Repeat("é", 1<<16)
		for i := range 2 * MaxEvents {
			e.Add(v1.Event{Kind: "Module", Name: "odd", Type: fmt.Sprint("T", i), Reason: long, Message: long})
		}
		e.Add(v1.Event{Kind: long, Name: long, Type: long, Reason: long, Message: long})
		all := read(t, e, v1.EventsRequest{})
		if len(all) != share+2 || all[0].Name != "web" || all[1].Type != fmt.Sprint("T", 2*MaxEvents-share) {
			t.Fatalf("%d events from %s on", len(all), all[0].Name)
		}
		last := all[len(all)-1]
		for _, s := range []string{last.Kind, last.Name, last.Type, last.Reason} {
			if len(s) > maxName || !strings.HasPrefix(s, "éé") {
				t.Errorf("a word has %d bytes", len(s))
			}
		}
		e.Flush()
	})
}

// What cannot be written is written later, without another event; and no event waits for the file.
func TestEventsAreWrittenAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "later")
		errs := 0
		var e *Events
		e = OpenEvents(dir, func(error) {
			if errs++; errs > 1 {
				return
			}
			e.Add(ready("during", "Found")) // would wait indefinitely if the lock were held while the file is written
		})
		e.Add(ready("web", "Found"))
		time.Sleep(writeSoon + 2*writeRarely + writeSoon)
		synctest.Wait()
		if errs != 3 {
			t.Fatalf("it was tried %d times to write into a directory that does not exist", errs)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * writeRarely)
		synctest.Wait()
		if n := len(read(t, openEvents(t, dir), v1.EventsRequest{})); n != 2 {
			t.Errorf("%d events are in the file", n)
		}
	})
}

// Many events are few writes, also without Flush; and a damaged file is no obstacle.
func TestEventsAreWrittenRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "events.json")
		e := openEvents(t, dir)
		writes, last := 0, time.Time{}
		for i := range 300 { // 30 s
			e.Add(ready(fmt.Sprint(i), "Found"))
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			e.mu.Lock()
			if info, err := os.Stat(file); err == nil && info.Size() > 0 && !e.written.Equal(last) {
				writes, last = writes+1, e.written
			}
			e.mu.Unlock()
		}
		if writes < 2 || writes > 4 {
			t.Errorf("%d writes in 30 s", writes)
		}
		time.Sleep(writeRarely)
		synctest.Wait()
		if n := len(read(t, openEvents(t, dir), v1.EventsRequest{})); n != 300 {
			t.Errorf("%d events are in the file", n)
		}
		if err := os.WriteFile(file, []byte(`[{"number":`), 0o600); err != nil {
			t.Fatal(err)
		}
		broken := openEvents(t, dir)
		broken.Add(ready("web", "Found"))
		broken.Flush()
		if n := len(read(t, openEvents(t, dir), v1.EventsRequest{})); n != 1 {
			t.Errorf("%d events after a damaged file", n)
		}
	})
}

// A client that reads too slowly for what is kept gets how many events it has lost, of those that it follows; what is
// repeated is not lost.
func TestLostEventsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openEvents(t, t.TempDir())
		e.Add(ready("a", "Found"))
		resume := make(chan bool)
		follow := func(name string) (got *[]v1.Event) {
			got = &[]v1.Event{}
			go func() {
				_ = e.Read(t.Context(), v1.EventsRequest{Limit: 1, Follow: true, Name: name}, func(v v1.Event) error {
					if *got = append(*got, v); len(*got) == 1 {
						<-resume
					}
					return nil
				})
			}()
			return got
		}
		slow, other := follow(""), follow("a")
		synctest.Wait() // both have a's first event, and read no more
		const more = 3
		for i := range share + more {
			e.Add(ready("b", fmt.Sprint("Reason", i)))
		}
		e.Add(ready("a", "Lost"))
		e.Add(ready("a", "Lost"))
		close(resume)
		synctest.Wait()
		want := 1 + 1 + share + 1 // the first, the line, what is kept of b, and one of a
		if all := *slow; len(all) != want || all[1].Lost != more || all[1].Number != 0 || all[2].Reason != "Reason3" ||
			all[want-1].Count != 2 {
			t.Errorf("a slow client has %d events, want %d: %+v", len(all), want, all[:min(3, len(all))])
		}
		if all := *other; len(all) != 2 || all[1].Lost != 0 {
			t.Errorf("a client that follows something else: %+v", all)
		}
		e.Flush()
	})
}

// A client that follows gets what there is and then each event, until it ends.
func TestEventsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := openEvents(t, t.TempDir())
		e.Add(ready("a", "Found"))
		e.Add(ready("b", "Found"))
		var got []string
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- e.Read(ctx, v1.EventsRequest{Limit: 1, Follow: true}, func(v v1.Event) error {
				if got = append(got, fmt.Sprint(v.Name, v.Count)); len(got) == 5 {
					return errors.New("the client is gone")
				}
				return nil
			})
		}()
		synctest.Wait()
		e.Add(ready("a", "Found"))
		synctest.Wait()
		e.Add(ready("c", "Found"))
		synctest.Wait()
		if all := strings.Join(got, " "); all != "b1 a2 c1" {
			t.Errorf("followed: %s", all)
		}
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
		e.Flush()
	})
}
