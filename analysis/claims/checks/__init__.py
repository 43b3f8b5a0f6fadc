"""Checks that decide claims by computation, seconds each, without training.

Importing this package fills `analysis.claims.verdicts.CHECKS`.
"""

from analysis.claims.checks import gradients, noise, reported, retrieval, structure

__all__ = ["gradients", "noise", "reported", "retrieval", "structure"]
