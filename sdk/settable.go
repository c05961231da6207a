// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Mirrored in kerb/set.h.
const (
	SetBuckets    = 1 << 16 // of SetTableMap
	SetBucketSize = 8       // elements
)

// SetBucket mirrors struct kerb_set_bucket.
type SetBucket [SetBucketSize]uint64

// Bucket returns the bucket of SetTableMap that may have an element, and the entry to look for; ok is false if none
// does.
func (s Set) Bucket(a netip.Addr) (bucket uint32, entry uint64, ok bool) {
	if s.Kind != SetKindTable || !a.Is4() {
		return 0, 0, false
	}
	bucket, entry = ElementOf(s.Version, a).Bucket()
	return bucket, entry, true
}

// Bucket returns the bucket and the entry of an element that is not an IPv6 address.
func (e SetElement) Bucket() (bucket uint32, entry uint64) {
	const golden = 0x9e3779b97f4a7c15
	entry = uint64(e.Set)<<32 | uint64(binary.NativeEndian.Uint32(e.Word[:]))
	hash := entry * golden
	hash = (hash ^ hash>>32) * golden
	return uint32(hash>>32) % SetBuckets, entry
}

// Find reports whether the bucket has an entry, and whether it is full, in which case SetElementsMap may have the
// entry.
func (b *SetBucket) Find(entry uint64) (has, full bool) {
	return slices.Contains(b[:], entry), b[SetBucketSize-1] != 0
}
