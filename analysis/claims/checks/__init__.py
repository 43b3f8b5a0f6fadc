"""Checks that decide claims by computation, seconds each, without training.

Importing this package fills `analysis.claims.verdicts.CHECKS`.
"""

from analysis.claims.checks import gradients, noise, record, reported, retrieval, structure

__all__ = ["gradients", "noise", "record", "reported", "retrieval", "structure"]
