// SPDX-License-Identifier: Apache-2.0

package nri

// Receive is receive, for tests.
var Receive = receive
