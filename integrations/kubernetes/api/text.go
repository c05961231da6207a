// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"unicode"
)

// Printable replaces control characters by spaces in a text reported by a node, since a compromised node could
// otherwise control the terminal of the reader.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}
