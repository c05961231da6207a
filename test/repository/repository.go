// SPDX-License-Identifier: Apache-2.0

// Package repository tests the source tree itself: names, layout, language, and what documents and workflows state
// about it. Its tests need neither root nor compiled data planes.
package repository
