"""Encoders, the two tasks' models, their losses, and published weights."""
