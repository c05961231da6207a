// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"maps"
	"slices"
)

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

func stringOf(v any) string { return fmt.Sprint(v) }
