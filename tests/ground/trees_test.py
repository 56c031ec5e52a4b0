import pytest

from delayjax._src.ground import trees


def test_broadcast_gives_each_leaf_its_prefix():
    def law(step):
        return step

    tree = {"a": {"x": 0, "y": 0}, "b": 0}
    assert trees.broadcast("delay", 1, tree) == {"a": {"x": 1, "y": 1}, "b": 1}
    assert trees.broadcast("delay", {"a": law, "b": 2}, tree) == {
        "a": {"x": law, "y": law},
        "b": 2,
    }


def test_broadcast_names_what_is_no_prefix():
    with pytest.raises(ValueError, match=r"`delay` must be one value or a prefix"):
        trees.broadcast("delay", {"c": 1}, {"a": 0})
