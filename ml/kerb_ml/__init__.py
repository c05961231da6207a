# SPDX-License-Identifier: Apache-2.0
"""Trains and imports models that Kerb's classifier runs on packets."""

__version__ = "0.1.0"
