# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import numpy as np
import pytest

SHIPPED = Path(__file__).parents[2] / "modules" / "classifier" / "models"


def random_numbers(seed):
    """Random numbers of the seed of a test, or of KERB_SEED; pytest prints the seed when the test fails."""
    seed = int(os.environ.get("KERB_SEED", seed))
    print(f"seed {seed}; repeat with: KERB_SEED={seed} pytest")
    return np.random.default_rng(seed)


@pytest.fixture
def rng():
    return random_numbers(7)


@pytest.fixture
def shipped():
    return SHIPPED


@pytest.fixture
def counts(rng):
    """Rows of four counts, and labels of two and of three classes."""
    x = rng.integers(0, 40, (500, 4))
    two = ((x[:, 1] > 9) & (x[:, 0] + x[:, 2] < 50)).astype(int)
    return x, two, np.where(x[:, 1] > 20, 2, two)
