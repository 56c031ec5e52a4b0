"""A record of the tiny config."""


def records(config):
    """A number that a run along a cluster misses."""
    return {"The largest training loss": lambda result: result.results.train_loss.max()}
