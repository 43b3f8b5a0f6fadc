"""Run folders as one tidy frame, and which of them may be compared."""
