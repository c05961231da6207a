// SPDX-License-Identifier: Apache-2.0

// Package models has the trained models that Kerb ships; `kerb-ml train shipped` makes them.
package models

import "embed"

// Files are documents of the format kerb-model/1, NAME.json.
//
//go:embed *.json
var Files embed.FS
