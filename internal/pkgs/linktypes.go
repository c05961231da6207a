// SPDX-License-Identifier: Apache-2.0

package pkgs

// LinkTypes that a package may read: what service.Link tells.
var LinkTypes = []string{"ethernet", "ieee802154", "none"}

// Reads are the link types of interfaces whose frames the data plane reads.
func (m *Manifest) Reads() []string {
	if len(m.LinkTypes) == 0 {
		return LinkTypes[:1]
	}
	return m.LinkTypes
}
