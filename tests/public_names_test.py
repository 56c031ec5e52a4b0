"""Code in a page that is a public name is known, and other code is not."""

import pytest
import reference


@pytest.mark.parametrize(
    "code, full",
    [
        ("dj.delayed", "delayjax.delayed"),
        ("delayed(optax.sgd(0.1), 4)", "delayjax.delayed"),
        ("cluster.simulate", "delayjax.cluster.simulate"),
        ("history=dj.ring.on_host()", "delayjax.ring.on_host"),
        ("protocols.k_async(1)", "delayjax.cluster.protocols.k_async"),
        ("Dynamics.step_limit", "delayjax.stability.Dynamics.step_limit"),
        ("trace.save(path)", "delayjax.cluster.Trace.save"),
        ("dj.step_sizes", "delayjax.step_sizes"),
        ("kardam", "delayjax.kardam"),
        ("optax.sgd(0.1)", None),
        ("keep_params=True", None),
        ("max_delay + 1", None),
        ("dj.nothing", None),
        ("methods.wagma()", None),  # of the runner
        ("init", None),  # many things have one
    ],
)
def test_a_public_name_is_known(code, full):
    assert reference.target(code, "guide") == full


def test_what_is_an_argument_as_well_is_a_link_only_where_it_is_called():
    assert reference.target("staleness", "guide") is None
    assert reference.target("staleness(state)", "guide") == "delayjax.staleness"


def test_a_name_alone_is_looked_for_in_the_modules_of_its_page():
    assert reference.target("uniform", "clusters") == "delayjax.cluster.uniform"
    assert reference.target("uniform", "guide") is None  # of delays, of cluster
    assert reference.target("run", "workers") == "delayjax.workers.run"
    assert reference.target("poisson", "reference/delays") == (
        "delayjax.delays.poisson"
    )


def test_a_page_of_the_runner_means_its_own_functions():
    assert reference.target("local_sgd(8)", "experiments") is None
    assert reference.target("dj.replay", "experiments") == "delayjax.replay"


def test_the_pages_and_modules_that_are_named_exist():
    docs = reference.pages()["delayjax"].parents[1]
    for page in [*reference.ABOUT, *reference.RUNNER]:
        assert (docs / f"{page}.md").exists()
    for modules in reference.ABOUT.values():
        assert {f"delayjax.{module}" for module in modules} <= set(reference.pages())
