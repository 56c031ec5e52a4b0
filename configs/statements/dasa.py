"""What Dal Fabbro et al. say of agents that run DASA, and our records."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio, tuned
from experiments.results.metrics import TimeTo


def published(config: ConfigDict) -> list[Published]:
    """What the abstract claims of N agents, and of the mean delay."""
    paper = dict(source="Dal Fabbro et al. (2024), arXiv:2403.17247, abstract")
    paper["setting"] = "theory, of stochastic approximation with N agents"
    few, many = min(config.agents), max(config.agents)
    rare = max(config.one_in)
    late = config.mean_delay * rare
    return [
        Published(
            text=f"{many} agents that run DASA are near the fixed point {many // few}"
            f" times as fast as {few}, with one message in {rare} {late} updates late",
            said="an N-fold convergence speedup under Markovian sampling",
            measure=ratio(
                until_near(config, agents=few), until_near(config, agents=many)
            ),
            at_least=many / few,
            tried="A server that averages what N agents send has it without delay too:"
            " see the record of plain steps. Our rule drops by a threshold, which is"
            " tuned; summaries of the paper name the median of the distances."
            f" {claims.CHOSEN_LATER}",
            **paper,
        ),
        Published(
            text=f"DASA needs as many updates where one message in {rare} is {late}"
            f" updates late as where each is {config.mean_delay} late",
            said="a rate that depends on the average delay",
            measure=ratio(
                until_near(config, agents=many),
                until_near(config, agents=many, one_in=1),
            ),
            at_most=1.1,
            bound_is_ours=True,
            **paper,
        ),
    ]


def until_near(config: ConfigDict, rule: str = "DASA", **where: int) -> Measure:
    """Updates until the parameters are near; inf where some seed's never are."""
    near = TimeTo("distance", config.target, along="update")
    return tuned(near, rule=rule, **{"one_in": max(config.one_in), **where})


def records(config: ConfigDict) -> dict[str, Measure]:
    """What agents save with plain steps, updates, and the mean delay."""
    few, many, rare = min(config.agents), max(config.agents), max(config.one_in)
    plain = [until_near(config, "plain", agents=agents) for agents in (few, many)]
    return {
        "Updates, plain steps, one agent / eight": ratio(*plain),
        "Updates, DASA, one agent": until_near(config, agents=few),
        "Updates, DASA, eight agents": until_near(config, agents=many),
        "Mean delay": mean("staleness_mean", agents=few, one_in=rare),
    }
