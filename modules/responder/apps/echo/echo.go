// SPDX-License-Identifier: Apache-2.0

// Package echo sends requests back as they are, for measurement.
package echo

import "github.com/kerb-edge/kerb/modules/responder/app"

// App returns the application.
func App() app.App { return echo{} }

type echo struct{}

// Compile implements app.App.
func (echo) Compile(l app.Listener) (app.Service, error) {
	return service{}, app.Decode(l.Config, &struct{}{})
}

type service struct{}

// Shape implements app.Service.
func (service) Params() app.Params { return app.Params{MaxRequest: 1472} }
