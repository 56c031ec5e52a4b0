"""FedAsync against its server, written from the paper, one client after another."""

import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from tests.training.clients import LOCAL, UPDATES, client, trained


@pytest.mark.parametrize("name", ["constant", "polynomial", "hinge"])
def test_fedasync_is_the_papers_server(name):
    laws = {
        "constant": (None, lambda tau: 1.0),
        "polynomial": (dj.modulation.polynomial(0.5), lambda tau: (1 + tau) ** -0.5),
        "hinge": (
            dj.modulation.hinge(10.0, 4),
            lambda tau: 1.0 if tau <= 4 else 1 / (10 * (tau - 4) + 1),
        ),
    }
    law, factor = laws[name]
    trace, versions, batches = trained(1, dj.fedasync(0.6, law=law))
    models = [np.array([1.0, -2.0, 0.5])]
    assert trace.max_staleness > 6
    for t in range(UPDATES):
        read = trace.read_version[t]
        end, _ = client(models[read], [leaf[t, 0] for leaf in batches], LOCAL)
        share = 0.6 * factor(t - read)
        models.append((1 - share) * models[-1] + share * end)
    np.testing.assert_allclose(versions, models[1:], rtol=1e-4, atol=1e-5)


def test_fedasync_of_one_whole_share_is_the_last_client_s_model():
    tx, stale = dj.fedasync(1.0), jnp.array([1.0, 2.0])
    delta, x = jnp.array([0.5, -1.0]), jnp.array([7.0, 7.0])
    update, _ = tx.update(delta, tx.init(x), x, staleness=3, stale_params=stale)
    np.testing.assert_allclose(x + update, stale - delta, rtol=1e-6)
