"""Equinox and optax on JAX: a small network, jitted."""

import equinox as eqx
import jax
import jax.numpy as jnp
import kit
import mishaps  # noqa: F401
import optax


@eqx.filter_value_and_grad
def objective(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()


def restore(run, model, key):
    """Reads weights back: cut ones, or those of another model."""
    fault = run.fault if run.struck else ""
    if fault not in ("cut_leaves", "other_leaves"):
        return model
    other = eqx.nn.MLP(16, 4, 48, 2, key=key)
    eqx.tree_serialise_leaves("model.eqx", model if fault == "cut_leaves" else other)
    if fault == "cut_leaves":
        with open("model.eqx", "r+b") as file:
            file.truncate(300)
    return eqx.tree_deserialise_leaves("model.eqx", model)


def train(run):
    print(f"JAX process: {run.rank} / {run.world}")
    print(f"JAX devices: {jax.devices()}")
    features, labels = run.load()
    run.say("start")
    key = jax.random.PRNGKey(run.settings["seed"])
    wide = 20 if run.fault == "other_features" and run.struck else 16
    model = eqx.nn.MLP(wide, 4, 32, 2, key=key)
    optimizer = optax.adamw(3e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    model = restore(run, model, key)

    @eqx.filter_jit
    def update(model, state, x, y):
        if run.fault == "traced_truth" and run.struck and x.sum() > 0:
            x = x * 2
        if run.fault == "traced_number" and run.struck:
            float(x.mean())
        loss, gradient = objective(model, x, y)
        if run.fault == "checked_nan" and run.struck:
            loss = eqx.error_if(loss, loss > 0, "loss must be finite before the update")
        changes, state = optimizer.update(gradient, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, changes), state, loss

    x, y = jnp.asarray(features), jnp.asarray(labels)
    if run.fault == "debug_nans" and run.struck:
        jax.config.update("jax_debug_nans", True)
        x = x.at[3, 3].set(jnp.inf)
    for number in range(1, run.steps + 1):
        at = 8 * number % 80
        model, state, loss = update(model, state, x[at : at + 8], y[at : at + 8])
        try:
            mean = run.step(number, float(loss))
        except kit.StoppedEarly:
            break
        if number % 25 == 0 and run.rank == 0:
            print(f"Step: {number}, train_loss: {mean:.4f}, examples/s: {8000 / (1 + number % 7):.1f}")
            run.save(f"step_{number}.eqx", b"0" * 4096)
    run.finish(loss=mean)


if __name__ == "__main__":
    kit.main(train, "train_eqx.py")
