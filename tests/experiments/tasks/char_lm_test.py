"""What is said of the text is true of it, and its end is held out."""

import collections
import hashlib
import itertools
import math
import pydoc_data.topics

import numpy as np
import pytest

from experiments import tasks
from experiments.tasks import language


def topics():
    text = pydoc_data.topics.topics
    return "\n".join(text[key] for key in sorted(text))


def test_char_lm_facts_are_those_of_the_text(make):
    facts, text = make("char_lm").facts, topics()
    assert facts["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert facts["characters"] == len(text)
    assert facts["vocabulary"] == len(set(text))
    singles = collections.Counter(text)
    unigram = sum(n / len(text) * math.log(len(text) / n) for n in singles.values())
    assert facts["unigram_nats"] == pytest.approx(unigram)
    pairs = collections.Counter(itertools.pairwise(text))
    before = collections.Counter(text[:-1])
    bigram = sum(
        n / (len(text) - 1) * math.log(before[pair[0]] / n) for pair, n in pairs.items()
    )
    assert facts["bigram_nats"] == pytest.approx(bigram)
    assert bigram < unigram < math.log(len(singles))


def test_the_last_tenth_of_the_text_is_held_out(monkeypatch):
    monkeypatch.setattr(language, "predict_next", lambda train, test, **_: train + test)
    train, test = tasks.char_lm()
    text = topics()
    letters = np.array(sorted(set(text)))
    assert "".join(letters[np.concatenate([train, test])]) == text
    assert len(test) == len(text) // 10
