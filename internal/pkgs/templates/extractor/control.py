# SPDX-License-Identifier: Apache-2.0
"""Control plane of {{.Name}}: writes the packed model. kerb.py does what is not special to it."""

import os
import struct

import kerb

INDEX = struct.Struct("=I")
SLOT, LIVE = 0, 0  # KERB_MODEL_LIVE of <kerb/features.h>


class Control:
    routes = {}

    def compile(self, config):
        return {}

    def fill(self, maps, config):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.bin"), "rb") as file:
            maps["models"].put(INDEX.pack(SLOT), file.read())
        maps["active"].put(INDEX.pack(LIVE), INDEX.pack(SLOT + 1))  # 0 is no model

    def start(self, maps, config):
        pass


if __name__ == "__main__":
    kerb.serve(Control())
