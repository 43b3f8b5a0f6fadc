"""Measurements of what was made fast, each beside the plain form it must equal."""
