// SPDX-License-Identifier: Apache-2.0

// Package repository tests the source tree itself: what documents and workflows say of it is true. Its tests need
// neither root nor compiled data planes.
package repository
