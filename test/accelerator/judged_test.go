// SPDX-License-Identifier: Apache-2.0

package accelerator

// judged checks that a program's connections were accelerated, or that the module tells that it was kept out and why.
func (n *node) judged(program string) {
	n.t.Helper()
	if plain {
		return
	}
}
