"""Figures: curves over training, results against settings, patch pictures."""
