"""Claims of Liu et al. about asynchronous islands, and records of `async_islands`."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import kept, ratio, tuned

_CONFIG = statements.config_of(__file__)
ALL, NONE, ONE = _CONFIG.ALL, _CONFIG.NONE, _CONFIG.ONE
SGD, NESTEROV, DELAYED = _CONFIG.SGD, _CONFIG.NESTEROV, _CONFIG.DELAYED


def loss(islands: str, server: str) -> Measure:
    """Held-out loss in nats at the best steps."""
    return tuned("test_loss", islands=islands, server=server)


def published(config: ConfigDict) -> list[Published]:
    """The claims about the failure of momentum, its cause and its cure."""
    source = "Liu et al. (2024), arXiv:2401.09135"
    setting = (
        "language models of 20 million parameters, four workers that are very"
        " different; a perplexity of 41.35 where workers wait"
    )
    of_toy = _CONFIG.SEARCHED * (config.task == "toy")  # momentum is searched there
    waiting = loss(ALL, NESTEROV + of_toy)
    matches = dict(
        source=f"{source}, abstract",
        said="it matches synchronous local SGD for each update, and is far ahead in"
        " time; a perplexity of 41.13",
        setting=setting,
        chosen=claims.Chosen.LATER,
    )
    at_waiting = {"islands": ALL, "server": NESTEROV}
    delayed, plain = (
        kept("test_loss", best_at=at_waiting, islands=NONE, server=server)
        for server in (DELAYED, NESTEROV)
    )
    # on characters Nesterov diverges at these steps: there is no number
    at_same_steps = Published(
        text="At the steps of islands that wait, delayed Nesterov ends lower than"
        " Nesterov's momentum, where nobody waits",
        source=f"{source}, the released toy",
        said="delayed Nesterov closes the gap",
        setting=setting,
        measure=ratio(delayed, plain),
        at_most=1.0,
        bound_is_ours=True,
        chosen=claims.Chosen.LATER,
    )
    repaired = "Delayed Nesterov and steps by speed repair what islands lose that wait"
    repaired += " for nobody"
    if config.task == "toy":
        repair = Published(
            text=repaired,
            tried="At the best steps no loss by Nesterov's momentum is seen, as a"
            " statement below says: there is nothing to repair. It was the headline"
            " before.",
            **matches,
        )
    else:
        by_speed, nesterov = (
            loss(NONE, server) for server in (DELAYED + _CONFIG.BY_SPEED, NESTEROV)
        )
        repair = Published(
            text=f"{repaired}, with Nesterov's momentum",
            measure=ratio(by_speed, nesterov),
            at_most=1.0,
            bound_is_ours=True,
            tried="The answer of the run, 0.992 to 1.08, was seen before.",
            **matches,
        )
    return [
        Published(
            text="With delayed Nesterov and steps by speed islands that wait for nobody"
            " have a held-out loss at most 5 % higher than islands that wait, with"
            " Nesterov's momentum",
            measure=ratio(loss(NONE, DELAYED + _CONFIG.BY_SPEED + of_toy), waiting),
            at_most=1.05,
            bound_is_ours=True,
            tried="For as many examples, and not in seconds. On the toy the momentum"
            " of both is searched. The slowest island takes 5 of 20 steps in a round,"
            " as in the source's toy; the source's language models have 8 of 50. The"
            " toy has half of the released spread: with the whole spread all methods"
            " ended within 2 %. With 3 steps and the training loss, after many passes"
            " over few examples, the ratio was 1.47 on the toy; the held-out loss of"
            " that run was seen before this statement: 0.92.",
            **matches,
        ),
        repair,
        *([at_same_steps] if config.task == "toy" else []),
        Published(
            text="With delayed Nesterov alone they end no higher either",
            source=f"{source}, the released toy",
            said="delayed Nesterov closes the gap",
            setting=setting,
            measure=ratio(loss(NONE, DELAYED + of_toy), waiting),
            at_most=1.0,
            bound_is_ours=True,
        ),
        Published(
            text="With Nesterov's momentum islands that wait for nobody end higher than"
            " islands that wait",
            source=f"{source}, abstract",
            said="it takes more iterations than its synchronous counterpart; a"
            " perplexity of 44.27",
            setting=setting,
            measure=ratio(loss(NONE, NESTEROV), loss(ALL, NESTEROV)),
            at_least=1.0,
            bound_is_ours=True,
        ),
        Published(
            text="With SGD islands that wait for nobody end lower than islands that"
            " wait",
            source=f"{source}, the released toy",
            said="asynchronous islands are ahead where the server has no momentum",
            setting="four classes, 32 Gaussians in 512 dimensions",
            measure=ratio(loss(NONE, SGD), loss(ALL, SGD)),
            at_most=1.0,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: the loss of waiting with Nesterov, and other losses over it."""
    nobody = [SGD, NESTEROV, DELAYED]
    fails = [NESTEROV]  # on characters it diverges at these steps: no number to keep
    if config.task == "toy":
        nobody += [name + _CONFIG.SEARCHED for name in (NESTEROV, DELAYED)]
        fails = []
    waiting = loss(ALL, NESTEROV)
    at = {"islands": ALL, "server": NESTEROV}
    others = {
        "SGD that waits": loss(ALL, SGD),
        "One island": loss(ONE, NESTEROV),
        **{f"{server}, nobody waits": loss(NONE, server) for server in nobody},
        **{
            f"{server}, nobody waits, steps of islands that wait": kept(
                "test_loss", best_at=at, islands=NONE, server=server
            )
            for server in (NESTEROV, DELAYED)
            if server not in fails
        },
    }
    about = f"of {config.task}"
    return {f"Held-out loss {about}, Nesterov that waits": waiting} | {
        f"{name}, over Nesterov that waits, {about}": ratio(other, waiting)
        for name, other in others.items()
    }
