"""The configuration of one run: typed, frozen, unknown keys forbidden, defaults = the paper's method.

No torch here: manifests are checked on login nodes.
"""

from sdtps.config.common import SdtpsConfig, TrainConfig
from sdtps.config.identity import NOT_IN_IDENTITY, identity, resolved
from sdtps.config.load import AnyConfig, Config, config_keys, load_config, parse_config
from sdtps.config.program import ProgramConfig
from sdtps.config.reid import ReidConfig
from sdtps.config.retrieval import MatchingConfig, RetrievalConfig
