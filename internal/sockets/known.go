// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"context"
	"encoding/json"
	"os"
	"strings"

	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// known is what a file keeps of a test: it is true until the next boot.
type known struct {
	Boot   string `json:"boot"`
	Result Result `json:"result"`
}

// Known is the result that a file keeps of a test on this kernel; false if it keeps none.
func Known(file string) (Result, bool) {
	var k known
	data, err := os.ReadFile(file)
	boot, bootErr := bootID()
	if err != nil || bootErr != nil || json.Unmarshal(data, &k) != nil || k.Boot != boot || len(k.Result.Checks) != len(checks)+len(waiting) {
		return Result{}, false // also that of another version, which had other checks
	}
	return k.Result, true
}

// TestOnce is Test, unless the file has its result already. A result that cannot be kept is returned with the error.
func TestOnce(ctx context.Context, file string) (Result, error) {
	if result, ok := Known(file); ok {
		return result, nil
	}
	result, err := Test(ctx)
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
