"""The golden tests are sharp: a small change to any published rule makes at least one of them fail.

Each mutant is the package's own source with one fragment replaced, loaded beside it; the golden tests
are then run on the mutant.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tests.golden.conftest import Golden, cases

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SUITES = tuple(
    HERE / f"test_{name}.py"
    for name in ("modules", "losses", "counts", "arrangements", "crossnet", "alignment")
)

MUTANTS = {
    "mask_constant": ("config.axes", "(1 - decision) * constant", "(1 - decision) * constant * 0.999"),
    "kept_count_truncates": (
        "selection",
        "math.ceil(patches * keep_ratio)",
        "int(patches * keep_ratio)",
    ),
    "aggregated_count_ceils": (
        "aggregation",
        "int(patches * aggregation_ratio * keep_ratio)",
        "-int(-patches * aggregation_ratio * keep_ratio // 1)",
    ),
    "lowest_scores_kept": ("selection", "descending=True", "descending=False"),
    "kept_in_patch_order": (
        "selection",
        "ordered[..., :kept], indices[..., :kept]",
        "ordered[..., :kept], indices[..., :kept].sort(dim=-1).values",
    ),
    "extra_token_uniform": (
        "config.axes",
        "dropped_score.softmax(dim=-1)",
        "dropped_score.mul(0).softmax(-1)",
    ),
    "extra_token_over_all": (
        "selection",
        "ordered[..., kept:], indices[..., kept:])",
        "ordered[..., :], indices[..., :])",
    ),
    "minmax_epsilon": ("config.axes", "MINMAX_EPSILON = 1e-8", "MINMAX_EPSILON = 1e-6"),
    "gumbel_epsilon": ("config.axes", "GUMBEL_EPSILON = 1e-9", "GUMBEL_EPSILON = 1e-6"),
    "no_clamp": ("config.axes", "if clamp is None else noise.clamp(-clamp, clamp)", ""),
    "temperature_ignored": ("config.axes", "settings) / settings.temperature)", "settings) / 1.0)"),
    "noise_steers_the_choice": (
        "selection",
        "ordered, indices = order(score)",
        "ordered, indices = order(score if uniform is None else score - uniform.log())",
    ),
    "straight_through_reordered": (
        "config.axes",
        "hard + (soft - soft.detach())",
        "(hard + soft) - soft.detach()",
    ),
    "soft_gradient_lost": ("config.axes", "hard + (soft - soft.detach())", "hard"),
    "no_grad_on_self_attention_lost": ("selection", "no_gradient(no_grad.own)", "no_gradient(False)"),
    "no_grad_on_guides_lost": ("selection", "no_gradient(no_grad.guides)", "no_gradient(False)"),
    "no_grad_on_guides_always": ("selection", "no_gradient(no_grad.guides)", "no_gradient(True)"),
    "no_grad_on_self_attention_always": (
        "selection",
        "no_gradient(no_grad.own)",
        "no_gradient(True)",
    ),
    "beta_weight_of_self": ("config.axes", "sum(guides, 2 * own)", "sum(guides, own)"),
    "uniform_shares_clamped": (
        "config.axes",
        "(weights.sum(dim=-1, keepdim=True) + MINMAX_EPSILON)",
        "weights.sum(dim=-1, keepdim=True).clamp_min(MINMAX_EPSILON)",
    ),
    "deviation_with_n": ("config.axes", "std(dim=-1, keepdim=True)", "std(-1, False, keepdim=True)"),
    "zscore_epsilon": ("config.axes", "ZSCORE_EPSILON = 1e-5", "ZSCORE_EPSILON = 1e-8"),
    "quantile_of_rho": ("config.axes", "(1 - settings.keep_ratio) * (", "settings.keep_ratio * ("),
    "heads_summed": ("config.axes", "weights.mean(dim=-2)", "weights.sum(dim=-2)"),
    "guide_asks": ("selection", "if self.axis.patch_queries else", "if False else"),
    "extra_uniform_always": ("selection", "if axis.while_idle is not None and", "if False and"),
    "softmax_over_outputs": ("aggregation", "score).softmax(dim=-1)", "score).softmax(dim=-2)"),
    "decision_left_out": (
        "aggregation",
        "chosen.tokens, chosen.kept_decision, chosen.kept_score",
        "chosen.tokens, None, chosen.kept_score",
    ),
    "guides_of_another_modality": (
        "multimodal",
        "globals_[first], globals_[second]",
        "globals_[modality], globals_[second]",
    ),
    "mean_positive": ("models.losses", ".amax(dim=1)", ".nan_to_num(0, 0, 0).mean(dim=1)"),
    "own_view_stays": (
        "evaluation.reid",
        "kept = ~(same_pid & (",
        "kept = ~(same_pid & ~same_pid & (",
    ),
    "released_patches_learn": (
        "crossnet",
        "self.patches.detach() if inside else self.patches",
        "self.patches",
    ),
    "aligned_without_leak": ("config.axes", "leak=0.1", "leak=0.0"),
    "experts_head_by_head": (
        "models.reid",
        "            for v in range(len(SETS))\n            for h in range(self.heads)\n",
        "            for h in range(self.heads)\n            for v in range(len(SETS))\n",
    ),
}


code = cache(lambda path: compile(path.read_text(encoding="utf-8"), str(path), "exec"))


def run(name: str, path: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    """The file executed as module `name`, in the place of any other of that name."""
    module = ModuleType(name)
    module.__file__ = str(path)
    patch.setitem(sys.modules, name, module)
    exec(code(path), module.__dict__)
    return module


def start_anew(patch: pytest.MonkeyPatch, change: tuple[str, str, str] | None) -> None:
    """Forget the modules that compute, and what makes configurations where it changes: they are
    imported again, and put back at the end."""
    for suite in SUITES:
        importlib.import_module(f"tests.golden.{suite.stem}")
    of_axes = change is None or change[0].startswith("config.")
    kept = ("sdtps.system.errors",) if of_axes else ("sdtps.system.errors", "sdtps.config")
    loaded = dict(sys.modules)
    for name in loaded:
        if name.startswith("sdtps.") and not name.startswith(kept):
            parent, _, child = name.rpartition(".")
            patch.setattr(loaded[parent], child, loaded[name])  # importing anew binds it anew
            patch.delitem(sys.modules, name)


def failures(change: tuple[str, str, str] | None, patch: pytest.MonkeyPatch) -> list[str]:
    """Golden cases that fail when one source is changed; stops at the first."""
    start_anew(patch, change)
    if change is not None:
        module, old, new = change
        path = ROOT / "sdtps" / f"{module.replace('.', '/')}.py"
        source = path.read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{path.name} must hold {old!r} exactly once"
        mutated = compile(source.replace(old, new), str(path), "exec")
        plain = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> object:
            return mutated if name == f"sdtps.{module}" else plain(loader, name)

        patch.setattr(SourceFileLoader, "get_code", get_code)
    for suite in SUITES:
        tests = run(f"mutated_{suite.stem}", suite, patch)
        for name, test in vars(tests).items():
            if not name.startswith("test_"):
                continue
            for label, arguments in calls(tests, name, test):
                try:
                    test(**arguments)
                except (AssertionError, RuntimeError) as error:
                    return [f"{label}: {error}"]
    return []


def calls(module: ModuleType, name: str, test: object) -> Iterator[tuple[str, dict[str, object]]]:
    """What pytest would call the test with; of several ways to run a golden case the first."""
    sets: list[dict[str, object]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        names, values = mark.args
        rows = [
            dict(zip(names, v, strict=True)) if isinstance(names, tuple) else {names: v} for v in values
        ]
        sets = [one | row for one in sets for row in rows]
    if not hasattr(module, "CASES"):
        yield from ((name, one) for one in sets)
        return
    for path in cases(module.CASES, (HERE / "vectors", HERE / "vectors/demo2")):
        yield path.stem, sets[0] | {"golden": Golden(path)}


def test_the_unchanged_source_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures(None, monkeypatch) == []


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutated_rule_breaks_a_golden_case(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures(MUTANTS[mutant], monkeypatch), f"no golden case notices: {mutant}"
