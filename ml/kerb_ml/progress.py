# SPDX-License-Identifier: Apache-2.0
"""Tells the person who waits how far it is, on standard error."""

import sys
import time


class Progress:
    """One line that is written over on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, what, total, stream=None):
        self.what, self.total, self.stream = what, total, stream or sys.stderr
        self.start = self.last = time.monotonic()

    def __call__(self, done):
        now = time.monotonic()
        terminal = self.stream.isatty()
        if done < self.total and now - self.last < (0.2 if terminal else 10):
            return
        self.last = now
        end = "\r" if terminal and done < self.total else "\n"
        print(f"{self.what}: {done} of {self.total}, {now - self.start:.0f} s", end=end, file=self.stream, flush=True)
