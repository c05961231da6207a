// SPDX-License-Identifier: Apache-2.0

package view

import (
	"net/http"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/serve"
	"github.com/kerb-edge/kerb/internal/service"
)

// ServiceOf returns the spec and the observed state of a service.
func (v *Views) ServiceOf(name string) (v1.ServiceSpec, service.State) {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	s, _ := resource.Service.Get(v.Now.Desired, name)
	return s.Spec, v.Now.Services[name]
}

// ServeModule proxies a request to the routes of a module's control plane.
func (v *Views) ServeModule(w http.ResponseWriter, r *http.Request, name string) error {
	v.Lock.Lock()
	plane, runs := v.Live.Plane(name)
	_, exists := resource.Module.Get(v.Now.Desired, name)
	v.Lock.Unlock()
	if !runs && exists {
		return &apierrors.Unavailable{Reason: "module " + name + " is not running, or not yet: kerb module get " + name}
	}
	if !runs {
		return &apierrors.NotFound{Kind: "Module", Name: name}
	}
	if plane == nil {
		return &apierrors.NotFound{Kind: "Routes of module", Name: name}
	}
	err := plane.ServeHTTP(w, r)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		v.Log.Info("request to module", "by", serve.Caller(r.Context(), v.ProcessName), "method", r.Method,
			"module", name, "path", r.URL.Path, "error", err)
	}
	return err
}
