#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the module and has the kernel check it. Needs root, clang and libbpf-dev; KERB names the binary.
set -eu
cd "$(dirname "$0")"
kerb=${KERB:-kerb}

"$kerb" package build .
"$kerb" package verify .
[ ! -e test.yaml ] || "$kerb" package test .
echo "{{.Name}}: ok"
