// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/memtrim"
	"github.com/kerb-edge/kerb/internal/oci"
	"github.com/kerb-edge/kerb/internal/resource"
)

// stallTime is how long a registry may send nothing. The whole pull is limited by the time limit of API requests.
const stallTime = 30 * time.Second

// Puller pulls packages for clients of the API, one at a time, because each is completely in memory.
type Puller struct {
	pipeline    *Pipeline
	store       *oci.Store
	credentials string
	busy        sync.Mutex
}

// NewPuller returns a puller into a store. It uses the node's credentials file.
func NewPuller(p *Pipeline, into *oci.Store, credentials string) *Puller {
	return &Puller{pipeline: p, store: into, credentials: credentials}
}

// PullPackage implements server.Backend. It checks the signature with the same keys as kerb package pull.
func (p *Puller) PullPackage(ctx context.Context, r v1.PackageRequest) (v1.Package, error) {
	ref, err := referenceOf(r)
	if err != nil {
		return v1.Package{}, err
	}
	if there, err := p.pipeline.Catalog.Get(ref.String()); err == nil {
		return deploy.PackageView(there), nil
	}
	if !p.busy.TryLock() {
		return v1.Package{}, &apierrors.Unavailable{Resource: "package " + ref.String(),
			Reason: "another package is being pulled: try again"}
	}
	defer p.busy.Unlock()
	memtrim.Busy()
	pulled, err := p.store.Pull(ctx, ref, oci.Trust{Owner: r.Owner},
		oci.Transport{Credentials: p.credentials, Stall: stallTime})
	if err != nil {
		p.pipeline.Log.Warn("a package is not pulled", "reference", ref.String(), "owner", r.Owner, "error", err)
		return v1.Package{}, pullError(ref, err, p.credentials)
	}
	p.pipeline.Log.Info("a package was pulled", "reference", ref.String(), "owner", r.Owner, "signedBy", pulled.SignedBy)
	there, err := p.pipeline.Catalog.Get(ref.String())
	if err != nil {
		return v1.Package{}, err
	}
	return deploy.PackageView(there), nil
}

// RemovePackage implements server.Backend.
func (p *Puller) RemovePackage(_ context.Context, r v1.PackageRequest) (v1.PackageRemoved, error) {
	ref, err := referenceOf(r)
	if err != nil {
		return v1.PackageRemoved{}, err
	}
	p.pipeline.Exclusive.Lock() // no module starts to use it in the meantime
	defer p.pipeline.Exclusive.Unlock()
	inUse := map[string]string{}
	p.pipeline.Lock.Lock()
	for name, m := range resource.Module.All(p.pipeline.Now.Desired) {
		inUse[name] = m.Spec.Package
	}
	p.pipeline.Lock.Unlock()
	if err := p.store.RemoveOf(r.Owner, ref, inUse); err != nil {
		return v1.PackageRemoved{}, err
	}
	p.pipeline.Log.Info("a package was removed", "reference", ref.String(), "owner", r.Owner)
	return v1.PackageRemoved{Source: ref.String()}, nil
}

// referenceOf accepts only digests in registries: a tag may point elsewhere later, and clients have no access to
// directories of the node.
func referenceOf(r v1.PackageRequest) (oci.Reference, error) {
	ref, err := oci.ParseReference(r.Source)
	if err == nil && (ref.Digest == "" || ref.Layout != "") {
		err = &apierrors.Invalid{Field: "source", Reason: r.Source + " is not REGISTRY/REPOSITORY@sha256:DIGEST: name the " +
			"content by its digest; kerb package pull, as root on the node, takes tags and image layouts"}
	}
	return ref, err
}

// pullError classifies whether the same request may succeed later.
func pullError(ref oci.Reference, err error, credentials string) error {
	var notFound *apierrors.NotFound
	explained := oci.Explain(err, ref, credentials).Error()
	switch {
	case errors.As(err, &notFound):
		return &apierrors.NotFound{Kind: "package", Name: ref.String() + " in the registry"}
	case oci.Temporary(err):
		return &apierrors.Unavailable{Reason: explained}
	}
	return &apierrors.Rejected{Summary: explained}
}
