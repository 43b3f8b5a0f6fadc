"""The verdicts that a line-by-line reading of the sources arrived at, to compare ours with.

T true, F false, P partly, U untested, - no letter given (evidence only). Transcribed by hand from the
project's reference on SDTPS, section 7; independent of the ledger's code.
"""

from __future__ import annotations

# 16: the number is real, that it is normal is false. 26: true of outputs and of the gradients of some
# stages, false of other stages' gradients. 43 to 45, 52: no log; the mechanism is reproduced. 53:
# superseded by logs. 58: identical on a toy.
READ: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("T", (1, 2, 3, 5, 7, 8, 9, 18, 19, 21, 22, 23, 31, 32, 35, 41, 61, *range(63, 72))),
    ("F", (4, 11, 13, 14, 15, 16, 17, 20, 24, 25, 27, 30, 33, 34, 36, 39, 40)),
    ("F", (46, 47, 48, 49, 55, 57, 58, 62)),
    ("P", (10, 12, 26, 28, 29, 38, 42, 54)),
    ("U", (6, 37, 50, 51, 56, 59, 60)),
    ("-", (43, 44, 45, 52, 53)),
)
FACTS = {number: letter for letter, numbers in READ for number in numbers}
WORDS = {"T": "supported", "F": "refuted", "P": "partly"}
# What evidence without a letter, or a letter U, lets a decided verdict be.
EXPECTED_WITHOUT_LETTER: dict[int, str] = {
    **dict.fromkeys((43, 44, 45, 50, 56), "supported"),
    **{51: "refuted", 53: "partly"},
}
# The reading counts any saving; a claim of saving is tested here by a least share of 5 %. 34: an
# encoder without a class token gets no gradient.
STRICTER = {34: "partly", 35: "refuted", 61: "refuted"}
# Only the third party's text would decide these; they stay open here.
ONLY_BY_TEXT = {18, 39}


def agrees(claim: int, word: str) -> bool:
    """Whether a verdict word is compatible with the reference's letter."""
    letter = FACTS[claim]
    if word in ("not tested", "inconclusive"):
        return True
    if claim in STRICTER:
        return word == STRICTER[claim]
    return word == WORDS.get(letter, EXPECTED_WITHOUT_LETTER.get(claim))
