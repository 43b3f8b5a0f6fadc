"""The name of a DeMo or DeMo2 run's arrangement, from the switches of its configuration."""

from __future__ import annotations

from collections.abc import Mapping

# In the order in which its name lists them.
_SWITCHES = (
    ("HDM", "MODEL.HDM"),
    ("ATM", "MODEL.ATM"),
    ("FRCA", "MODEL.USE_FRCA"),
    ("SACR", "MODEL.USE_SACR"),
    ("MultiModalSACR", "MODEL.USE_MULTIMODAL_SACR"),
    ("SDTPS", "MODEL.USE_SDTPS"),
    ("DGAF", "MODEL.USE_DGAF"),
    ("LIF", "MODEL.USE_LIF"),
)


def arrangement(config: Mapping[str, str]) -> tuple[str, dict[str, bool]]:
    """A name such as 'SDTPS+DGAF-v1' and the component switches, from a DeMo configuration."""
    components = {name: config[key] == "True" for name, key in _SWITCHES if key in config}
    parts = []
    for name, on in components.items():
        if on:
            version = config.get(f"MODEL.{name}_VERSION", "").strip("'\"")
            parts.append(f"{name}-{version}" if version else name)
    return "+".join(parts) or "baseline", components
