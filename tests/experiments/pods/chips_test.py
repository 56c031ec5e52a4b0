"""Names of topologies, and the bandwidth of their links."""

import re

import pytest

from experiments.pods import chips


@pytest.mark.parametrize(
    "name",
    [
        *("", "v5e", "v5e:4", "v5e:32x32", "v0:2x2", "v5e:axb", "v5e:4x0", "0*v5e:4x4"),
        *("2v5e:4x4", "*v5e:4x4", "v5e:4x4x4x4", "h100:8", "h100:1x8", "2*h100:1x1x8"),
    ],
)
def test_an_unknown_topology_is_named_beside_examples(name):
    with pytest.raises(
        chips.PodError, match=rf"v5e:16x16.*, got {re.escape(repr(name))}"
    ):
        chips.topology(name)


@pytest.mark.parametrize(
    "name, links, gb",
    [
        ("v5e:2x2", 2, 50),  # a corner has a neighbor along each axis
        ("v5e:4x4", 2, 50),
        ("v5e:16x16", 4, 50),  # two in each direction of an axis that is a ring
        ("v5e:4x16", 3, 50),
        ("2*v5e:4x4", 2, 50),
        ("v6e:4x4", 2, 100),
        ("v5p:2x2x1", 2, 100),
        ("v5p:2x2x4", 3, 100),  # no axis is a ring, unless all are
        ("v5p:4x4x4", 6, 100),
        ("v4:4x4x8", 6, 50),
        ("h100:1x1x8", 1, 450),  # NVLink within a host
        ("h100:1x2x8", 1, 50),  # and the network between hosts
    ],
)
def test_a_device_s_links(name, links, gb):
    assert chips.topology(name).speed.link == links * gb * 1e9


def test_the_memory_of_a_device_is_in_gib():
    assert chips.topology("v5e:4x4").memory_bytes == 15.75 * 2**30


@pytest.mark.parametrize(
    "name, extra", [("v5e:4x4", "tpu"), ("h100:1x1x8", "cuda")], ids=["tpu", "gpu"]
)
def test_without_its_package_it_says_what_to_install(name, extra, monkeypatch):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(chips.PodError, match=rf"pip install -e '\.\[{extra}\]'"):
        chips.topology(name).devices()


def test_what_this_jax_cannot_describe_is_one_line(monkeypatch):
    def refuse(**options):
        raise NotImplementedError("topology not implemented\nand more")

    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(chips.topologies, "get_topology_desc", refuse)
    for name in ("2*v5e:4x4", "h100:1x1x8"):
        with pytest.raises(chips.PodError) as error:
            chips.topology(name).devices()
        assert f"got {name!r}; JAX" in str(error.value)
        assert "topology not implemented" in str(error.value)
        assert "\n" not in str(error.value)
