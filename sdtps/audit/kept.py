"""Audits that are made once: submission audits a study, and its paper prints what was found then.

No torch is imported where the audit is kept. A file of the cache holds an audit; its name is a digest
of all that decides it: the configurations, this package's code, the versions of what computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sdtps.config import Config
from sdtps.data.contents import values_digest
from sdtps.run import provenance
from sdtps.run.locations import cache_root
from sdtps.system.files import write_text


def kept_audit(configs: Mapping[str, Config], baseline: str, *, anew: bool = False) -> dict[str, Any]:
    """`Audit.as_json` of these variants, without labels; from the cache where it is kept.

    Args:
        anew: make it, whatever is kept: a check trusts no file but the runs.
    """
    code = sorted(file.read_bytes() for file in provenance.PACKAGE.rglob("*.py"))
    packages = provenance.environment()["packages"]
    texts = [config.model_dump_json() for config in configs.values()]
    place = cache_root() / f"audit-{values_digest(*code, packages, baseline, *configs, *texts)}.json"
    with suppress(OSError, ValueError):  # none is kept, or no whole one
        if not anew:
            return dict(json.loads(place.read_bytes()))
    from sdtps.audit.audit import audit, one_thread

    with one_thread():  # more threads would round the last digits otherwise
        made = audit(configs, baseline).as_json()
    with suppress(OSError):  # a cache that cannot be written
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, json.dumps(made))
    return made
