// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/registry/remote/errcode"
	"oras.land/oras-go/v2/registry/remote/retry"
)

// withoutRetries makes requests to registries fail at the first error.
func withoutRetries(t *testing.T) {
	policy := retry.DefaultPolicy
	retry.DefaultPolicy = &retry.GenericPolicy{Retryable: retry.DefaultPredicate, Backoff: retry.DefaultBackoff}
	t.Cleanup(func() { retry.DefaultPolicy = policy })
}

func ofReferrers(r *http.Request) bool { return strings.Contains(r.URL.Path, "/referrers/") }

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// Temporary errors of a registry neither cause a signed package to be rejected as unsigned, nor to be stored with a
// waived signature.
func TestTemporaryErrors(t *testing.T) {
	withoutRetries(t)
	host := startRegistry(t, registry.WithReferrersSupport(true))
	signer, public := author(t, "acme")
	target := host + "/acme/limiter:1"
	push(t, target, limiter(t), nil)
	signBundle(t, target, signer, "")
	manifest, content := bundleAt(t, target)
	bundle := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/manifests/"+manifest.String()) }
	layer := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/blobs/"+content.String()) }

	var end context.CancelFunc // of the pull
	aborts := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	stalls := func(_ http.ResponseWriter, r *http.Request) {
		end()
		<-r.Context().Done()
	}
	for name, c := range map[string]struct {
		fails     func(r *http.Request) bool
		answer    http.HandlerFunc
		temporary bool
	}{
		"list 503":       {ofReferrers, status(http.StatusServiceUnavailable), true},
		"list 429":       {ofReferrers, status(http.StatusTooManyRequests), true},
		"list aborted":   {ofReferrers, aborts, true},
		"list stalls":    {ofReferrers, stalls, true},
		"bundle 502":     {bundle, status(http.StatusBadGateway), true},
		"layer 503":      {layer, status(http.StatusServiceUnavailable), true},
		"layer aborted":  {layer, aborts, true},
		"layer stalls":   {layer, stalls, true},
		"list 403":       {ofReferrers, status(http.StatusForbidden), false},
		"list 501":       {ofReferrers, status(http.StatusNotImplemented), false},
		"layer is gone":  {layer, status(http.StatusNotFound), false},
		"bundle is gone": {bundle, status(http.StatusNotFound), false},
	} {
		fails := true
		at := proxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
			if fails && c.fails(r) {
				c.answer(w, r)
				return true
			}
			return false
		}) + "/acme/limiter:1"
		for _, waive := range []bool{false, true} {
			n := newNode(t)
			n.trusts(public)
			var ctx context.Context
			ctx, end = context.WithCancel(t.Context())
			fails = true
			_, err := n.Pull(ctx, ref(t, at), Trust{AllowUnsigned: waive}, Transport{})
			end()
			refused := errors.As(err, new(*SignatureError))
			temporary := err != nil && (strings.Contains(err.Error(), "try again") || errors.Is(err, context.Canceled))
			stored, listErr := n.References()
			if listErr != nil {
				t.Fatal(listErr)
			}
			switch {
			case c.temporary && (!temporary || refused || len(stored) > 0):
				t.Errorf("%s, waived %v: %v, and stored: %v", name, waive, err, stored)
			case !c.temporary && (waive && err != nil || !waive && !refused):
				t.Errorf("%s, waived %v: %v", name, waive, err)
			}
			if strings.Contains(name, " 50") && c.temporary && !errors.As(err, new(*errcode.ErrorResponse)) {
				t.Errorf("%s, waived %v: the cause is lost: %v", name, waive, err)
			}
			fails = false
			if p, err := n.pull(at); err != nil || p.SignedBy != "acme" {
				t.Errorf("%s, waived %v: afterwards: %+v, %v", name, waive, p, err)
			}
		}
	}
}

// One readable signature suffices. A pulled package can be opened, even if other signatures could not be read.
func TestFormatThatCannotBeRead(t *testing.T) {
	withoutRetries(t)
	host := startRegistry(t, registry.WithReferrersSupport(true))
	signer, public := author(t, "acme")
	target := host + "/acme/limiter:1"
	push(t, target, limiter(t), signer)
	from, err := Transport{}.repository(ref(t, target))
	if err != nil {
		t.Fatal(err)
	}
	signatures, err := findSimple(t.Context(), from, rootOf(t, target).Digest)
	if err != nil || signatures == nil {
		t.Fatalf("%v, %v", signatures, err)
	}
	ofSimple := func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/manifests/"+signatures.Digest.String())
	}
	for name, c := range map[string]struct {
		list, simple int // status codes; 0: not failing
		ok, waived   bool
	}{
		"list 503":           {http.StatusServiceUnavailable, 0, true, true},
		"simple signing 503": {0, http.StatusServiceUnavailable, true, true},
		"both 503":           {http.StatusServiceUnavailable, http.StatusServiceUnavailable, false, false},
		"simple signing 404": {0, http.StatusNotFound, false, true},
		"both 403":           {http.StatusForbidden, http.StatusForbidden, false, true},
	} {
		at := proxy(t, host, func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case c.list != 0 && ofReferrers(r):
				w.WriteHeader(c.list)
			case c.simple != 0 && ofSimple(r):
				w.WriteHeader(c.simple)
			default:
				return false
			}
			return true
		}) + "/acme/limiter:1"
		for _, waive := range []bool{false, true} {
			n := newNode(t)
			n.trusts(public)
			trust := Trust{AllowUnsigned: waive, Identity: strings.TrimSuffix(target, ":1")}
			_, err := n.Pull(t.Context(), ref(t, at), trust, Transport{})
			if want := c.ok && !waive || c.waived && waive; (err == nil) != want {
				t.Errorf("%s, waived %v: %v", name, waive, err)
			}
			if err != nil {
				continue
			}
			if _, err := n.Get(at); err != nil {
				t.Errorf("%s, waived %v: opened: %v", name, waive, err)
			}
		}
	}
}

// bundleAt returns the manifest and the layer of the only bundle of an artifact.
func bundleAt(t *testing.T, target string) (manifest, layer digest.Digest) {
	t.Helper()
	from, err := Transport{}.repository(ref(t, target))
	if err != nil {
		t.Fatal(err)
	}
	found, err := findBundles(t.Context(), from, rootOf(t, target))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	m, err := (&loader{from: from}).manifest(t.Context(), found[0])
	if err != nil {
		t.Fatal(err)
	}
	return found[0].Digest, m.Layers[0].Digest
}
