"""DeMo2's train_net.py as a stand-in: it leaves a published log in place of its own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

output = Path(sys.argv[sys.argv.index("OUTPUT_DIR") + 1])
output.mkdir(parents=True, exist_ok=True)
shutil.copyfile(os.environ["PUBLISHED_LOG"], output / "train_log.txt")
raise SystemExit(int(os.environ["PUBLISHED_ENDS"]))
