"""The verdicts that a line-by-line reading of the sources arrived at, to compare ours with.

T true, F false, P partly, U untested, - no letter given (evidence only). Transcribed by hand from the
project's reference on SDTPS, section 7; independent of the ledger's code.
"""

from __future__ import annotations

FACTS: dict[int, str] = {
    1: "T",
    2: "T",
    3: "T",
    4: "F",
    5: "T",
    6: "U",
    7: "T",
    8: "T",
    9: "T",
    10: "P",
    11: "F",
    12: "P",
    13: "F",
    14: "F",
    15: "F",
    16: "F",  # the number is real, that it is normal is false
    17: "F",
    18: "T",
    19: "T",
    20: "F",
    21: "T",
    22: "T",
    23: "T",
    24: "F",
    25: "F",
    26: "P",  # true of outputs and of the gradients of some stages, false of other stages' gradients
    27: "F",
    28: "P",
    29: "P",
    30: "F",
    31: "T",
    32: "T",
    33: "F",
    34: "F",
    35: "T",
    36: "F",
    37: "U",
    38: "P",
    39: "F",
    40: "F",
    41: "T",
    42: "P",
    43: "-",  # no log; the mechanism is reproduced: it explodes
    44: "-",
    45: "-",
    46: "F",
    47: "F",
    48: "F",
    49: "F",
    50: "U",
    51: "U",  # unlikely
    52: "-",  # no log
    53: "-",  # superseded by logs
    54: "P",
    55: "F",  # contradicted by logs
    56: "U",
    57: "F",
    58: "F",  # identical on a toy
    59: "U",
    60: "U",
    61: "T",
    62: "F",  # the logs begin and end each epoch higher
    **dict.fromkeys(range(63, 72), "T"),  # of the published record
}
WORDS = {"T": "supported", "F": "refuted", "P": "partly"}
# What evidence without a letter, or a letter U, lets a decided verdict be.
EXPECTED_WITHOUT_LETTER: dict[int, str] = {
    43: "supported",
    44: "supported",
    45: "supported",
    50: "supported",
    51: "refuted",
    53: "partly",
    56: "supported",
}
# Only the third party's text would decide these; they stay open here.
ONLY_BY_TEXT = {18, 39}


def agrees(claim: int, word: str) -> bool:
    """Whether a verdict word is compatible with the reference's letter."""
    letter = FACTS[claim]
    if word in ("not tested", "inconclusive"):
        return True
    return word == WORDS.get(letter, EXPECTED_WITHOUT_LETTER.get(claim))
