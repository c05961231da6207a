// SPDX-License-Identifier: Apache-2.0

// Package pkgs reads, checks, creates and builds packages. It parses manifests, checks compiled data planes against the
// contract, validates configs with the package's schema, and estimates the memory of maps. A package is a directory;
// built-in packages are embedded in the binary.
package pkgs
