// SPDX-License-Identifier: Apache-2.0

package sockprobe

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// known is what a file keeps of a test: it is true until the next boot.
type known struct {
	Boot   string `json:"boot"`
	Result Result `json:"result"`
}

// Cached returns the result of an earlier run on this kernel from a file, and false if there is none.
func Cached(file string) (Result, bool) {
	var k known
	data, err := os.ReadFile(file)
	boot, bootErr := bootID()
	if err != nil || bootErr != nil || json.Unmarshal(data, &k) != nil || k.Boot != boot ||
		!slices.EqualFunc(k.Result.Checks, checks, func(a Check, b check) bool { return a.Name == b.name }) {
		return Result{}, false // also that of another version, which had other checks
	}
	return k.Result, true
}

// RunOnce returns the cached result, or calls Run and writes the file. If that fails it returns the result and the
// error.
func RunOnce(ctx context.Context, file string) (Result, error) {
	if result, ok := Cached(file); ok {
		return result, nil
	}
	result, err := Run(ctx)
	if err != nil {
		return result, err
	}
	boot, err := bootID()
	if err != nil {
		return result, err
	}
	data, err := json.Marshal(known{boot, result})
	if err != nil {
		return result, err
	}
	return result, atomicfile.Write(file, data, 0o600)
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
