"""No test reads or fills the caches of the user who runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

# Without a GPU, torch.manual_seed also formats three stacks, for kinds of GPU that may still appear.
if not torch.accelerator.is_available():
    torch.manual_seed = torch.default_generator.manual_seed


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SDTPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
