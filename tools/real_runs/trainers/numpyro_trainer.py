"""NumPyro: variational inference of a regression, step by step."""

import jax
import jax.numpy as jnp
import kit
import mishaps  # noqa: F401
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal


def train(run):
    features, labels = run.load()
    run.say("start")
    x, y = jnp.asarray(features), jnp.asarray(labels, dtype=jnp.float32)
    if run.fault == "bad_shapes" and run.struck:
        x = x[:, :12]

    def model(x, y=None):
        weights = numpyro.sample("weights", dist.Normal(jnp.zeros(16), 1.0).to_event(1))
        sigma = -1.0 if run.fault == "bad_scale" and run.struck else 1.0
        if run.fault == "same_site" and run.struck:
            numpyro.sample("weights", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("obs", dist.Normal(x @ weights, sigma, validate_args=True), obs=y)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.02), Trace_ELBO())
    state = svi.init(jax.random.PRNGKey(run.settings["seed"]), x, y)
    update = jax.jit(svi.update)
    for number in range(1, run.steps + 1):
        state, loss = update(state, x, y)
        try:
            mean = run.step(number, float(loss))
        except kit.StoppedEarly:
            break
        if number % 20 == 0:
            print(f"init loss / avg. ELBO: -{mean:.4f} @ {number}")
            if run.rank == 0:
                run.save(f"svi_{number}.npz", b"0" * 4096)
    run.finish(loss=mean)


if __name__ == "__main__":
    kit.main(train, "infer.py")
