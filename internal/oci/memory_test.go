// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"errors"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A pull allocates a bounded amount of memory, however many entries the list of referrers has: an empty one takes 40
// times as much memory as it has bytes.
func TestMemoryOfReferrers(t *testing.T) {
	const most = 96 << 20 // bytes that a pull allocates in all, whether the collector has freed them or not
	host := startRegistry(t)
	push(t, host+"/acme/limiter:1", limiter(t), nil)
	root := rootOf(t, host+"/acme/limiter:1")
	for _, size := range []int{250 << 10, 1 << 20} {
		full := []byte(`{"manifests":[{}` + strings.Repeat(",{}", (size-32)/3) + `]}`)
		empty := []byte(`{"manifests":[]` + strings.Repeat(" ", size-32) + `}`)
		for name, c := range map[string]struct {
			path string // part of it
			data []byte
		}{
			"API":         {"/referrers/", full},
			"empty pages": {"/referrers/", empty},
			"tag":         {"/manifests/sha256-" + root.Digest.Encoded(), full},
		} {
			evil := proxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, c.path) || strings.HasSuffix(r.URL.Path, ".sig") {
					return false
				}
				w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
				w.Header().Set("Docker-Content-Digest", digest.FromBytes(c.data).String())
				w.Header().Set("Content-Length", strconv.Itoa(len(c.data)))
				w.Header().Set("Link", "<"+r.URL.Path+`?n=1>; rel="next"`)
				w.Write(c.data)
				return true
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := newNode(t).pull(evil + "/acme/limiter:1")
			runtime.ReadMemStats(&after)
			if !errors.As(err, new(*SignatureError)) || !strings.Contains(err.Error(), "not read") &&
				!strings.Contains(err.Error(), "cannot be read") {
				t.Errorf("%s of %d bytes: %v", name, size, err)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > most {
				t.Errorf("%s of %d bytes: a pull allocates %d MiB", name, size, got>>20)
			}
		}
	}
}
