// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

const library, headers = "../lib/intercept", "../modules/intercept"

func compiler(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"clang-19", "gcc"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("needs a C compiler")
	return ""
}

// programs are the compiled programs by source, in a temporary directory.
var programs = struct {
	dir  string
	made map[string]string
}{made: map[string]string{}}

func TestMain(m *testing.M) {
	var err error
	if programs.dir, err = tempdir.New(); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = tempdir.Remove(programs.dir)
	os.Exit(code)
}

// compileC compiles a file in testdata with the library, once.
func compileC(t *testing.T, source string) string {
	t.Helper()
	if out, ok := programs.made[source]; ok {
		return out
	}
	sources, err := filepath.Glob(filepath.Join(library, "*.[ch]"))
	if err != nil || len(sources) < 5 {
		t.Fatalf("%d files of the library, %v", len(sources), err)
	}
	out := filepath.Join(programs.dir, strings.TrimSuffix(source, ".c"))
	args := []string{"-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I" + library, "-I" + headers,
		"-I../bpf/include", "-o", out, filepath.Join("testdata", source)}
	for _, s := range sources {
		if _, err := os.Stat(s); err != nil { // the go command's test cache records the file
			t.Fatal(err)
		}
		if strings.HasSuffix(s, ".c") {
			args = append(args, s)
		}
	}
	if text, err := exec.Command(compiler(t), args...).CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", source, err, text)
	}
	programs.made[source] = out
	return out
}

func TestHeaderIsCPlusPlus(t *testing.T) {
	cmd := exec.Command(compiler(t), "-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
		"-I"+library, "-")
	cmd.Stdin = strings.NewReader("#include \"kerb_intercept.h\"\nint main() { return kerb_intercept_error() == " +
		"nullptr; }\n")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestLayoutIsThatOfC(t *testing.T) {
	text, err := exec.Command(compileC(t, "layout.c")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var r record
	var l lateEntry
	var s state
	var c controlEntry
	log := unsafe.Offsetof(s.Log)
	want := fmt.Sprintln("record", unsafe.Sizeof(r), unsafe.Offsetof(r.L3), unsafe.Offsetof(r.Ifindex),
		unsafe.Offsetof(r.PID)) +
		fmt.Sprintln("late", unsafe.Sizeof(l), unsafe.Offsetof(l.Queued), unsafe.Offsetof(l.Comm1)) +
		fmt.Sprintln("state", unsafe.Sizeof(s), unsafe.Offsetof(s.Waiting), unsafe.Offsetof(s.Heartbeat), log,
			log+unsafe.Offsetof(s.Log.Delay), log+unsafe.Offsetof(s.Log.Lates), log+unsafe.Offsetof(s.Log.Last)) +
		fmt.Sprintln("control", unsafe.Sizeof(c), unsafe.Offsetof(c.Value), unsafe.Offsetof(c.Mask)) +
		fmt.Sprintln("numbers", pageBytes, buckets, lates, controlRing)
	if string(text) != want {
		t.Errorf("C has\n%sGo has\n%s", text, want)
	}
}

// TestWaitIsThatOfC compares both adaptive waits on the same arrivals, sleeps and preemptions.
func TestWaitIsThatOfC(t *testing.T) {
	var script, want strings.Builder
	random := rand.New(rand.NewPCG(1, 2))
	for mode := range 3 {
		for s := range 3 {
			for _, patience := range []int64{0, 1000 * us} {
				simulate(random, Wait(mode), patience, standing(s), &script, &want)
			}
		}
	}
	cmd := exec.Command(compileC(t, "waiting.c"))
	cmd.Stdin = strings.NewReader(script.String())
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); got != want.String() {
		gots, wants := strings.Split(got, "\n"), strings.Split(want.String(), "\n")
		for i := range min(len(gots), len(wants)) {
			if gots[i] != wants[i] {
				t.Fatalf("step %d of %d: C does %s, Go %s", i, len(wants), gots[i], wants[i])
			}
		}
		t.Fatalf("C does %d steps, Go %d", len(gots), len(wants))
	}
}

func simulate(random *rand.Rand, mode Wait, patience int64, s standing, script, want *strings.Builder) {
	const reach = 1000 * us
	awake := random.Int64N(1000)
	w := newWaiter(goals{mode, reach, patience, awake}, s)
	fmt.Fprintln(script, "i", int64(reach), patience, awake, int(mode), int(s))
	now, arrival := int64(1_000_000_000), int64(1_000_000_000)
	for i := range 4000 {
		gap := []int64{5 * us, 167 * us, 10_000 * us, 20 * us}[i/1000]
		arrival += gap + random.Int64N(gap/8)
		if random.IntN(100) == 0 {
			arrival += 20 * gap
		}
		if i%1000 >= 500 && i%5 > 0 { // later packets arrive in bursts
			arrival -= gap - gap/64
		}
		for now < arrival {
			next := w.next(now)
			fmt.Fprintln(script, "n", now, 0)
			fmt.Fprintln(want, int(next.kind), next.until)
			switch {
			case next.kind == stepSpin:
				now += gap/4 + random.Int64N(us)
			case next.kind == stepSleep || next.kind == stepDoze && arrival < next.until:
				now = arrival + 30*us
				w.woke(0, now)
				fmt.Fprintln(script, "w", 0, now)
			default:
				now = next.until + random.Int64N(60*us)
				if random.IntN(200) == 0 {
					now += 4000 * us
				}
				w.woke(next.until, now)
				fmt.Fprintln(script, "w", next.until, now)
				if next.kind == stepRest {
					gain := random.Int64N(60 * us)
					w.rested(gain)
					fmt.Fprintln(script, "r", gain, 0)
				}
			}
			if random.IntN(500) == 0 {
				now += 4000 * us
				w.preempted(now)
				fmt.Fprintln(script, "p", now, 0)
			}
		}
		w.arrived(arrival)
		fmt.Fprintln(script, "a", arrival, 0)
	}
}
