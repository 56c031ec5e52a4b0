"""Signatures of the reference: types in short, and a page that says what they mean."""

import inspect
import re

import reference
import signatures

import delayjax as dj


def test_a_type_has_the_name_that_the_source_writes_without_its_private_module():
    arguments, result = signatures.text_of(dj.scale_by_staleness)
    assert arguments == "(law: Law)"
    assert result == "optax.GradientTransformationExtraArgs"


def test_choices_are_spelled_out():
    arguments, _ = signatures.text_of(dj.delivered)
    assert "idle: 'hold' | 'zeros'='hold'" in arguments


def test_public_classes_have_their_full_name_and_a_method_has_no_self():
    arguments, result = signatures.text_of(dj.cluster.Trace.staleness_law)
    assert arguments == "(*, burn_in: NonNegativeInt=0, dropped: bool=False)"
    assert result == "delayjax.cluster.StalenessLaw"


def test_a_class_is_made_from_its_fields():
    arguments, result = signatures.text_of(dj.stability.Dynamics)
    assert arguments.startswith(
        "(delay: int | ArrayLike, *, momentum: ShareFloat = 0.0"
    )
    assert result is None
    assert signatures.text_of(dj.ring.Ring)[0] == (
        "(slots: Any, pushed: jax.Array, first: jax.Array)"
    )


def test_a_constant_that_is_private_is_its_value():
    assert "bucket_bytes: int=4194304" in signatures.text_of(dj.exchange.mean)[0]


def test_every_argument_of_a_public_function_has_a_type():
    for full in sorted(reference.everything()):
        value = reference.value(full)
        arguments, _ = signatures.text_of(value)
        assert "_src" not in arguments, full
        for name in inspect.signature(value).parameters:
            assert re.search(rf"\b{name}: ", arguments), f"{full}: {name}"


def test_the_page_of_types_has_each_name_that_is_no_public_class():
    named = set(signatures.types())
    assert {"Law", "Delay", "Storage", "Protocol", "Step"} <= named
    public = {full.rpartition(".")[2] for full in reference.everything()}
    others = (
        "Any Callable Iterator Iterable Literal Mapping Sequence None Path ArrayLike"
    )
    known = named | public | set(others.split()) | {"DTypeLike", "Mesh", "P"}
    types = re.findall(r"(?<![\w.'])[A-Z]\w+(?![\w.']|\s?=)", signatures.shown())
    assert set(types) - known == {"False", "True"}


def test_a_type_has_its_value_and_its_docstring():
    lines = signatures.types()["Law"]
    assert lines[:2] == [
        ".. type:: Law",
        "   :canonical: Callable[[jax.Array], ArrayLike]",
    ]
    assert any("staleness" in line for line in lines[2:])
