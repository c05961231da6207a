// SPDX-License-Identifier: Apache-2.0

// Package suggest finds the known name that is closest to a misspelt one, for "did you mean" messages.
package suggest

import "strings"

// Closest returns the name in known that is closest to word, or "" if none is within one edit in three characters.
func Closest(word string, known []string) string {
	best, least := "", len(word)/3+1
	for _, name := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(name)); d < least || d == least && best == "" {
			best, least = name, d
		}
	}
	return best
}

// DidYouMean returns "; did you mean NAME?" with the closest name, or "".
func DidYouMean(word string, known []string) string {
	if name := Closest(word, known); name != "" && name != word {
		return prefix + name + "?"
	}
	return ""
}

const prefix = "; did you mean "

// Suggested returns the name in a text that ends with the result of DidYouMean, or "".
func Suggested(text string) string {
	i := strings.LastIndex(text, prefix)
	if i < 0 || !strings.HasSuffix(text, "?") {
		return ""
	}
	return text[i+len(prefix) : len(text)-1]
}

// distance is the optimal string alignment distance: insertions, deletions, substitutions and swaps of adjacent
// characters.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
