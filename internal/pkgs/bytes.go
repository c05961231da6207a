// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"fmt"
	"strconv"
	"strings"
)

var byteUnits = []struct {
	suffix string
	factor int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"", 1},
}

// ParseBytes reads a size in the notation of Kubernetes: 16Mi, 500k, 4096. Empty is 0, which means no limit.
func ParseBytes(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	for _, unit := range byteUnits {
		number, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err == nil && n > 0 && n <= (1<<62)/unit.factor {
			return n * unit.factor, nil
		}
		break
	}
	return 0, fmt.Errorf("%q is not a size; write for example 16Mi, 512Ki or 4096", text)
}

// FormatBytes formats a size for humans, for example 3.4 MiB.
func FormatBytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
