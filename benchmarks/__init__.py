"""Measured speeds, both sides in one run. Outside the code that a run's digest covers."""
