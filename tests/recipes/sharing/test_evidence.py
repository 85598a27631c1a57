"""Evidence of reruns from strangers is checked before it is shown."""

import pytest

from recipes.sharing.canonical import canonical_json
from recipes.sharing.evidence import GOOD, VERDICTS, evidence_in, verdict_text
from trainers.tasks.reproduce import EXIT_CODES

TRUE = {"verdict": "the same run", "date": "2026-11-25T10:00:00+0100", "part": 0.5}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"verdict": "perfect"}, "no verdict"),
        ({"verdict": ["worse"]}, "no verdict"),
        ({"date": "today"}, "no date"),
        ({"date": None}, "no date"),
        ({"date": "0001-01-01T00:00:00+2300"}, "no date"),
        ({"part": 0}, "no share"),
        ({"part": "all"}, "no share"),
        ({"part": True}, "no share"),
    ],
)
def test_what_no_rerun_has_written_is_refused(changed, why):
    assert evidence_in(canonical_json(TRUE)) == TRUE
    with pytest.raises(ValueError, match=why):
        evidence_in(canonical_json(TRUE | changed))


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        (["libc: 2.35 in the pack, 2.39 here"], ""),
        (["code: 1a in the pack, 2b here"], ", with other code"),
        (["code: 1a in the pack, 2b here", "data: 1a in the pack, 2b here"], ", with other code and data"),
        ("code: no list", ""),
        ([7, None], ""),
    ],
)
def test_a_verdict_is_shown_with_the_code_and_data_that_were_not_the_packs(differs, words):
    assert verdict_text(TRUE | {"differs": differs}) == f"the same run, after 50 % of it{words}"


def test_verdicts_are_those_that_reproduce_ends_in():
    assert set(VERDICTS) == set(EXIT_CODES)
    assert set(GOOD) == {verdict for verdict, code in EXIT_CODES.items() if code == 0}
