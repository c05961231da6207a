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
func (service) Shape() app.Shape { return app.Shape{MaxRequest: 1472} }
