// SPDX-License-Identifier: Apache-2.0

// Package nearest finds the known name that a misspelt one was probably meant to be.
package nearest

import "strings"

// To returns the name in known that is closest to word, or nothing if none is close: at most one edit in three characters.
func To(word string, known []string) string {
	best, least := "", len(word)/3+1
	for _, name := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(name)); d < least || d == least && best == "" {
			best, least = name, d
		}
	}
	return best
}

// Hint returns "; did you mean NAME?" for the name that is closest to word, or nothing.
func Hint(word string, known []string) string {
	if name := To(word, known); name != "" && name != word {
		return hint + name + "?"
	}
	return ""
}

const hint = "; did you mean "

// Named returns the name that a text ending with a hint names, or nothing.
func Named(text string) string {
	i := strings.LastIndex(text, hint)
	if i < 0 || !strings.HasSuffix(text, "?") {
		return ""
	}
	return text[i+len(hint) : len(text)-1]
}

// distance is the optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
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
