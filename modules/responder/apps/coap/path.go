// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"fmt"
	"net/url"
	"strings"
)

// MaxPath is how many bytes the Uri-Path options of a request may have together, each with one byte in front of its
// segment, two from 13 bytes on.
const MaxPath = 64

// ParsePath splits a path into segments. %2F is a slash within one. "" is the root, which has none.
func ParsePath(path string) ([]string, error) {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return nil, nil
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		var err error
		if segments[i], err = url.PathUnescape(s); err != nil {
			return nil, err
		}
	}
	if n := len(encodePath(segments)); n > MaxPath {
		return nil, fmt.Errorf("takes %d bytes in a request; at most %d can be answered", n, MaxPath)
	}
	return segments, nil
}

// encodePath is what a request has as Uri-Path options, the first one with its delta taken off: each segment's length,
// then the segment. A length has only one encoding, so that equal paths are equal bytes.
func encodePath(segments []string) []byte {
	out := []byte{}
	for _, s := range segments {
		out = appendOption(out, 0, []byte(s))
	}
	return out
}

// formatPath is ParsePath's reverse, and the name of a resource.
func formatPath(segments []string) string {
	out := make([]string, len(segments))
	for i, s := range segments {
		out[i] = url.PathEscape(s)
	}
	if len(out) > 0 && out[0] == "" {
		return "/" + strings.Join(out, "/")
	}
	return strings.Join(out, "/")
}
