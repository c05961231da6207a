#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Packs the model, builds the module and has the kernel check it. Needs root, clang and libbpf-dev; KERB names the binary.
set -eu
cd "$(dirname "$0")"
kerb=${KERB:-kerb}

"$kerb" model pack model.json --features length,ttl,port -f model.bin # the order of enum feature
"$kerb" package build .
"$kerb" package verify .
echo "{{.Name}}: ok"
