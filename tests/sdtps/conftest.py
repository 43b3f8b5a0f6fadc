"""No test reads or fills the caches of the user who runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

# Without a GPU, torch.manual_seed keeps the call for one that may still appear, and formats the stack
# for each kind: most of what a small test takes.
if not torch.accelerator.is_available():
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        kind.manual_seed_all = lambda seed: None


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SDTPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
