"""What Liu et al. say of asynchronous islands, and records of `async_islands`."""

from ml_collections import ConfigDict

from experiments import Published, statements
from experiments.results.estimates import Measure
from experiments.results.measures import kept, ratio, tuned

_CONFIG = statements.config_of(__file__)
ALL, NONE, ONE = _CONFIG.ALL, _CONFIG.NONE, _CONFIG.ONE
SGD, NESTEROV, DELAYED = _CONFIG.SGD, _CONFIG.NESTEROV, _CONFIG.DELAYED


def loss(islands: str, server: str) -> Measure:
    """Training loss in nats at the best steps."""
    return tuned("train_loss", islands=islands, server=server)


def published(config: ConfigDict) -> list[Published]:
    """The failure, its cause and its cure; all bounds were written before the run.

    Steps by speed have not run yet.
    """
    del config
    source = "Liu et al. (2024), arXiv:2401.09135"
    setting = (
        "language models of 20 million parameters, four workers that are very"
        " different; a perplexity of 41.35 where workers wait"
    )
    waiting = loss(ALL, NESTEROV)
    return [
        Published(
            text="With Nesterov's momentum islands that wait for nobody end higher than"
            " islands that wait",
            source=f"{source}, abstract",
            said="it takes more iterations than its synchronous counterpart; a"
            " perplexity of 44.27",
            setting=setting,
            measure=ratio(loss(NONE, NESTEROV), waiting),
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
        Published(
            text="With delayed Nesterov they end no more than 5 % above islands that"
            " wait",
            source=f"{source}, abstract",
            said="it matches synchronous local SGD; a perplexity of 41.27, with steps"
            " by speed too",
            setting=setting,
            measure=ratio(loss(NONE, DELAYED), waiting),
            at_most=1.05,
            bound_is_ours=True,
        ),
        Published(
            text="With delayed Nesterov and steps by speed they end no more than 5 %"
            " above islands that wait",
            source=f"{source}, the table of heterogeneous workers",
            said="a perplexity of 41.13",
            setting=setting,
            measure=ratio(loss(NONE, DELAYED + _CONFIG.BY_SPEED), waiting),
            at_most=1.05,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Losses where islands wait, and what each server makes of it."""
    nobody = [SGD, NESTEROV, DELAYED]
    fails = [NESTEROV]  # of characters it diverges at these steps: no number to keep
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
                "train_loss", best_at=at, islands=NONE, server=server
            )
            for server in (NESTEROV, DELAYED)
            if server not in fails
        },
    }
    about = f"of {config.task}"
    return {f"Training loss {about}, Nesterov that waits": waiting} | {
        f"{name}, over Nesterov that waits, {about}": ratio(other, waiting)
        for name, other in others.items()
    }
