// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"strings"
	"testing"
)

func TestSlack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	allowSlack()
	for _, thread := range threads {
		got, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if err == nil && strings.TrimSpace(string(got)) != "500000" {
			t.Errorf("thread %s has %s ns", thread.Name(), got)
		}
	}
}
