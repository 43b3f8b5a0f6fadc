"""Run folders as one tidy frame, and which of them may be compared."""

IMPORTED = "_imported"  # below runs/: the folder of other people's runs, STUDY/VARIANT/seedK-HASH
