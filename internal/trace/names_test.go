// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// namer is a control plane; nil: one that does not answer.
type namer map[uint64]string

// slowly is how long one takes for a name that begins with it.
const slowly = "slowly"

var asked int

func (n namer) NoteName(_ context.Context, note string, value uint64) (string, error) {
	asked++
	if n == nil || note != "rule" {
		return "", errors.New("no answer")
	}
	if strings.HasPrefix(n[value], slowly) {
		time.Sleep(2 * slowName) // in the time of synctest
	}
	return n[value], nil
}

// Names are asked for once a second; modules without control plane, and such as do not answer, have none.
func TestNoteValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fw := namer{16: "web"}
		name := NoteValues(map[string]namer{"fw": fw, "silent": nil})
		asked = 0
		check := func(module string, value uint64, want string, questions int) {
			t.Helper()
			if got := name(module, "rule", value); got != want || asked != questions {
				t.Errorf("%s %d is %q after %d questions; want %q, %d", module, value, got, asked, want, questions)
			}
		}
		check("fw", 16, "web", 1)
		check("fw", 16, "web", 1)
		check("fw", 17, "", 2)
		check("fw", 17, "", 2)
		check("silent", 16, "", 3)
		check("silent", 17, "", 3)
		check("none", 16, "", 3)
		fw[16] = "db"
		check("fw", 16, "web", 3)
		time.Sleep(nameLasts)
		check("fw", 16, "db", 4)
		check("silent", 16, "", 5)
		fw[18], fw[19] = slowly, "quickly" // so that it is not asked for a while
		check("fw", 18, slowly, 6)
		check("fw", 19, "", 6)
		check("fw", 18, slowly, 6)
		time.Sleep(nameLasts)
		check("fw", 19, "quickly", 7)
	})
}
