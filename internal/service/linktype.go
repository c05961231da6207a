// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// LinkType is what frames of the link begin with, by the names of manifests: ethernet, ieee802154, or none, which is
// bare IP. Frames of others are nothing that a module reads.
func (l Link) LinkType() string {
	switch l.Type {
	case 0, unix.ARPHRD_ETHER, unix.ARPHRD_LOOPBACK:
		return "ethernet"
	case unix.ARPHRD_IEEE802154, unix.ARPHRD_IEEE802154_MONITOR:
		return "ieee802154"
	case unix.ARPHRD_NONE, unix.ARPHRD_RAWIP:
		return "none"
	}
	return fmt.Sprintf("ARPHRD %d", l.Type)
}
