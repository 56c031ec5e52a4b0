"""Claims of Dal Fabbro et al. about agents that run DASA, and our records."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio, tuned
from experiments.results.metrics import TimeTo


def published(config: ConfigDict) -> list[Published]:
    """The claims of the abstract about N agents, and about the mean delay."""
    paper = dict(source="Dal Fabbro et al. (2024), arXiv:2403.17247, abstract")
    paper["setting"] = "theory, of stochastic approximation with N agents"
    many, rare = config.agents, max(config.one_in)
    late = f"with one message in {rare} {rare * config.mean_delay} updates late"
    alone = until_near(config, "plain", agents=1)
    half = until_near(config, "nearer half")
    return [
        Published(
            text=f"{many} agents, of which the nearer half counts, need fewer updates"
            f" than if all count, {late}",
            said="a rate that depends on the average delay",
            measure=ratio(half, until_near(config, "plain")),
            at_most=1.0,
            bound_is_ours=True,
            tried="The headline before was the next statement, which plain averages"
            " pass too. Nine of ten messages are not late here, so that the delay harms"
            " plain averages little.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text=f"{many} agents, of which the nearer half counts, are near the fixed"
            f" point at least {many} times as fast as one, {late}",
            said="an N-fold convergence speedup under Markovian sampling",
            measure=ratio(alone, half),
            at_least=many,
            no_effect=1.0,
            demonstration=True,
            tried="N holds for the rate, up to a constant factor. Plain averages are"
            " as fast, as the headline says: this is the speed-up of averages."
            " That DASA keeps the nearer half of the messages is from summaries of the"
            " paper; its text was not at hand. Most messages are not late here, so"
            " that nine of ten are no further than the median, and count. The mean over"
            " the seeds hangs on slow seeds: the ratio of the medians is 4.2.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
    ]


def until_near(config: ConfigDict, rule: str, **where: int) -> Measure:
    """Updates until the parameters are near; inf if a seed never gets there."""
    near = TimeTo("distance", config.target, along="update")
    where = {"one_in": max(config.one_in), "agents": config.agents} | where
    return tuned(near, rule=rule, **where)


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: updates, what plain averages save, and the mean delay."""
    return {
        "Updates, plain averages": until_near(config, "plain"),
        "Updates, within a reach": until_near(config, "reach"),
        "Mean delay": mean("staleness_mean", agents=1, one_in=max(config.one_in)),
    }
