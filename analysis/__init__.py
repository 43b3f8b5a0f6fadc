"""Runs to numbers: collect, statistics, tables, curves, claims, report, explain and importers.

Fractions are in [0, 1] in every frame and file; per cent appears only where text is rendered. Nothing
here starts or stops a job, and nothing here imports torch.
"""
