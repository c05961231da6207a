// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// priority is that of the calling thread, as the system call has it: 20 less the nice value.
func priority(t *testing.T) int {
	t.Helper()
	p, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Work in the background has a low priority, and leaves no thread that has it to others.
func TestInBackground(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, during, thread := priority(t), 0, 0
	inBackground(func() { during, thread = priority(t), unix.Gettid() })
	if during != 20-backgroundNice || priority(t) != before || thread == unix.Gettid() {
		t.Errorf("priority %d in the background, want %d; then %d, want %d; thread %d of %d", during, 20-backgroundNice,
			priority(t), before, thread, unix.Gettid())
	}
	again := 0
	inBackground(func() { again = unix.Gettid() })
	if again != thread {
		t.Errorf("thread %d follows %d: the kernel kills what a thread has started when it ends", again, thread)
	}
	for range 100 {
		after := make(chan int)
		go func() { after <- priority(t) }()
		if p := <-after; p != before {
			t.Fatalf("a goroutine runs with priority %d, want %d", p, before)
		}
	}
}
