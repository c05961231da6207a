// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"unicode"
)

// Printable returns a text that a node has reported with spaces in place of control characters: a node that was taken
// over could otherwise write to the terminal of its reader.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}
