// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// pullForever pulls and removes a package repeatedly until the process is killed.
func pullForever(dir string) {
	s := NewStore(filepath.Join(dir, "packages"), filepath.Join(dir, "keys"))
	ref, err := ParseReference("oci:" + filepath.Join(dir, "layout") + ":1")
	for err == nil {
		if _, err = s.Pull(context.Background(), ref, Trust{AllowUnsigned: true}, Transport{}); err == nil {
			err = s.Remove(ref, nil)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestKilledAtAnyTime kills processes during a pull, and expects either the complete package or nothing.
func TestKilledAtAnyTime(t *testing.T) {
	dir := t.TempDir()
	target := "oci:" + filepath.Join(dir, "layout") + ":1"
	push(t, target, limiter(t), nil)
	s := NewStore(filepath.Join(dir, "packages"), filepath.Join(dir, "keys"))
	for i := range 20 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "KERB_OCI_PULL="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(60+i*7) * time.Millisecond) // each time at another point of the download
		cmd.Process.Kill()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
			t.Fatalf("the process ended before it was killed: %v", err)
		}
		refs, err := s.References()
		if err != nil {
			t.Fatalf("after kill %d: %v", i, err)
		}
		for _, r := range refs {
			if _, err := s.Get(r); err != nil {
				t.Errorf("after kill %d: %v", i, err)
			}
		}
	}
	if _, err := s.Pull(t.Context(), ref(t, target), Trust{AllowUnsigned: true}, Transport{}); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(s.blobDir(), ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
