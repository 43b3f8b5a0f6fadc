"""Patch pictures: which patches of which image a trained run keeps, drops and aggregates."""
