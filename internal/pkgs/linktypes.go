// SPDX-License-Identifier: Apache-2.0

package pkgs

// LinkTypes that a package may read: what service.Link has.
var LinkTypes = []string{"ethernet", "ieee802154", "none"}

// ReadableLinkTypes returns the link types whose frames the data plane can parse.
func (m *Manifest) ReadableLinkTypes() []string {
	if len(m.LinkTypes) == 0 {
		return LinkTypes[:1]
	}
	return m.LinkTypes
}
