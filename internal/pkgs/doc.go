// SPDX-License-Identifier: Apache-2.0

// Package pkgs knows packages: the manifest and what it promises, the compiled data plane and whether it keeps the
// contract, the config and its schema, what the maps will cost, and how a package is written and built. A package is a
// directory; the built-in ones are directories inside the binary.
package pkgs
