// SPDX-License-Identifier: Apache-2.0

// Package ui tests the page of `kerb ui` in a browser, on a node with traffic: `make test-ui`. Its screenshots are
// those of docs/ui.md.
package ui
