// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/kerb-edge/kerb/sdk"
)

// maxKeys is how many keys are accepted from one node (TUN_KEYS).
const maxKeys = 4

// macVersion is the version of the MAC unless the configuration says otherwise. Version 1, that of Kerb 0.1.0, uses the
// configured key itself, and covers neither ports, identification, offset nor length of fragments.
const macVersion = 2

// secretKey is a configured key.
type secretKey struct {
	id    int
	bound bool // MAC version 2
	key   [16]byte
}

func (secretKey) String() string   { return "(secret)" }
func (secretKey) GoString() string { return "(secret)" }

// parseKeys parses 128-bit keys with unique IDs from 1 to 255 and keeps the order of the list. Errors never contain key
// material.
func parseKeys(field string, list []keyConfig) ([]secretKey, error) {
	var out []secretKey
	seen := map[int]bool{}
	if len(list) > maxKeys {
		return nil, wrong(field, "%d keys; at most %d fit", len(list), maxKeys)
	}
	for i, k := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		if k.ID < 1 || k.ID > 255 {
			return nil, wrong(at+".id", "%d is not between 1 and 255", k.ID)
		}
		if seen[k.ID] {
			return nil, wrong(at+".id", "%d is used before", k.ID)
		}
		seen[k.ID] = true
		if k.MAC < 0 || k.MAC > macVersion {
			return nil, wrong(at+".mac", "%d is neither 1 nor 2", k.MAC)
		}
		key, err := hex.DecodeString(string(k.Key))
		if err != nil || len(key) != 16 {
			return nil, wrong(at+".key", "is not 32 hexadecimal digits; make one: openssl rand -hex 16")
		}
		out = append(out, secretKey{k.ID, k.MAC != 1, [16]byte(key)})
	}
	return out, nil
}

// keysOf returns the keys shared with a node: its own ones, or those of the cluster.
func (c *config) keysOf(addr netip.Addr) []secretKey {
	for _, p := range c.peers {
		if p.addr == addr && len(p.keys) > 0 {
			return p.keys
		}
	}
	return c.cluster
}

// derive returns the key for packets from one node to another. Who knows it learns neither the key that it is derived
// from nor that of another pair or direction.
func (k secretKey) derive(from, to address) macKey {
	key := k.key
	if k.bound {
		h := hmac.New(sha256.New, k.key[:])
		h.Write([]byte("kerb tunnel MAC 2"))
		h.Write(from[:])
		h.Write(to[:])
		key = [16]byte(h.Sum(nil))
	}
	return macKey{[2]uint64{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])}}
}

// pairKeys are the keys for a node as the data plane has them; none if the node cannot be reached.
func (c *config) pairKeys(n node) (out nodeKeys) {
	if n.Local == (address{}) {
		return
	}
	for i, k := range c.keysOf(n.Addr.addr()) {
		out.ID[i] = uint8(k.id)
		if k.bound {
			out.Bound |= 1 << i
		}
		out.Send[i], out.Receive[i] = k.derive(n.Local, n.Addr), k.derive(n.Addr, n.Local)
	}
	return
}

// writeKeys writes the keys for the node at a place to a half, unless they are there.
func (c *config) writeKeys(maps sdk.Maps, half int, at uint32, n node) error {
	if !c.keyed() {
		return nil
	}
	at += uint32(half) * maxNodes
	want := c.pairKeys(n)
	var have nodeKeys
	if err := maps.Lookup(mapKeys, at, &have); err != nil || have == want {
		return err
	}
	return maps.Put(mapKeys, at, want)
}

// sipHash is SipHash-2-4 (Aumasson and Bernstein, 2012).
func sipHash(key macKey, data []byte) uint64 {
	v0, v1 := key.K[0]^0x736f6d6570736575, key.K[1]^0x646f72616e646f6d
	v2, v3 := key.K[0]^0x6c7967656e657261, key.K[1]^0x7465646279746573
	round := func(n int) {
		for range n {
			v0 += v1
			v1 = bits.RotateLeft64(v1, 13) ^ v0
			v0 = bits.RotateLeft64(v0, 32)
			v2 += v3
			v3 = bits.RotateLeft64(v3, 16) ^ v2
			v0 += v3
			v3 = bits.RotateLeft64(v3, 21) ^ v0
			v2 += v1
			v1 = bits.RotateLeft64(v1, 17) ^ v2
			v2 = bits.RotateLeft64(v2, 32)
		}
	}
	last := make([]byte, 8)
	copy(last, data[len(data)&^7:])
	last[7] = byte(len(data))
	for words := append(append([]byte{}, data[:len(data)&^7]...), last...); len(words) > 0; words = words[8:] {
		m := binary.LittleEndian.Uint64(words)
		v3 ^= m
		round(2)
		v0 ^= m
	}
	v2 ^= 0xff
	round(4)
	return v0 ^ v1 ^ v2 ^ v3
}
