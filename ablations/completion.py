"""The verb `completion`: what a shell needs to complete verbs, options, studies and variants."""

from __future__ import annotations

import argparse

from ablations.study.arguments import find_study, known_studies

# Functions of the shells, called where an argument is marked with `complete` (sdtps/system and
# ablations/study/arguments.py). They ask this program: names depend on the current folder.
PREAMBLE = {
    "bash": """\
_sdtps_studies() {
  compgen -f -X '!*.y*ml' -- "$1"
  compgen -W "$(sdtps completion studies 2>/dev/null)" -- "$1"
}
_sdtps_variants() {
  compgen -W "$(sdtps completion variants "${COMP_WORDS[@]:2}" 2>/dev/null)" -- "$1"
}
""",
    "zsh": """\
_sdtps_studies() { compadd -- ${(f)"$(sdtps completion studies 2>/dev/null)"}; _files -g '*.y(a|)ml' }
_sdtps_variants() { compadd -- ${(f)"$(sdtps completion variants ${words[2,-1]} 2>/dev/null)"} }
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=("bash", "zsh", "studies", "variants"),
        help="a shell: its start-up file reads the output from a file; or the names that there are",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def command(arguments: argparse.Namespace) -> int:
    if arguments.what == "studies":
        print("\n".join(known_studies()))
    elif arguments.what == "variants":
        print("\n".join(variants(arguments.words)))
    else:
        print(script(arguments.what))
    return 0


def script(shell: str) -> str:
    """The completion script of the whole command line."""
    import shtab

    from ablations.cli import all_verbs
    from sdtps.system.commandline import Parser, verb_parser

    verbs = all_verbs()
    top = Parser(prog="sdtps")
    commands = top.add_subparsers(dest="verb")
    for name, (_, about, _) in verbs.items():
        commands.add_parser(
            name, help=about, parents=[verb_parser("sdtps", name, verbs)], add_help=False
        )
    return str(shtab.complete(top, shell, preamble=PREAMBLE))  # type: ignore[arg-type]


def variants(words: list[str]) -> list[str]:
    """The variants of the first study among `words`, a command line that is being typed."""
    from ablations.study.manifest import load_study
    from sdtps.system.errors import SdtpsError

    for word in words:
        if word and not word.startswith("-"):
            try:
                return list(load_study(find_study(word)).variants)
            except SdtpsError:
                continue
    return []
