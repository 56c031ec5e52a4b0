"""Every workaround says where it is needed, why, until when, and what shows it."""

import re
from pathlib import Path

from delayjax._src.ground import xla

ROOT = Path(__file__).parents[2]
SOURCE = Path(xla.__file__).read_text()
FACTS = re.compile(
    r"For: (?:CPU|TPU and GPU|all platforms), jax 0\.10(?: to 0\.(\d+))?\."
    r" Try without it at: 0\.(\d+)\.\n((?: *\S.*\n)+?) *Shown by: `([^`]+)`"
)


def test_a_workaround_is_tried_without_at_the_version_after_its_last():
    facts = FACTS.findall(SOURCE)
    assert len(facts) == len(re.findall(r"For:|Shown by:", SOURCE)) / 2
    for last, tried, reason, _ in facts:
        assert int(tried) == int(last or 10) + 1
        assert reason.strip()


def test_what_shows_a_workaround_exists():
    tests = "".join(path.read_text() for path in ROOT.glob("tests/**/*_test.py"))
    for *_, shown in FACTS.findall(SOURCE):
        assert (ROOT / shown).exists() or f"def {shown}(" in tests, shown
