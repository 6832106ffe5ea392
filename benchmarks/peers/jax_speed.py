"""Time a private step of JAX-Privacy: the small network of `benchmarks.peers.speed`, all parameters trained.

It runs in an environment with jax-privacy, without dpsweep: `benchmarks.peers.speed` calls it with the batch
size and the number of classes. Results go to standard output.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import json
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax_privacy import clipping, noise_addition

GROUPS = 4


def _block(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """Convolve, normalise groups of channels, and pool: (N, C, H, W) to (N, C', H/2, W/2)."""
    x = lax.conv(x, weights["kernel"], (1, 1), "SAME") + weights["bias"][:, None, None]
    groups = x.reshape(len(x), GROUPS, -1)
    centred = groups - groups.mean(-1, keepdims=True)
    x = (centred / jnp.sqrt(groups.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    x = jax.nn.relu(x * weights["scale"][:, None, None] + weights["shift"][:, None, None])
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def loss(parameters: list[dict[str, jax.Array]], images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross entropy of images (N, 1, 28, 28)."""
    *blocks, head = parameters
    for weights in blocks:
        images = _block(images, weights)
    logits = images.reshape(len(images), -1) @ head["weight"] + head["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _parameters(classes: int) -> list[dict[str, jax.Array]]:
    def block(key: int, inputs: int, outputs: int) -> dict[str, jax.Array]:
        kernel = 0.1 * jax.random.normal(jax.random.key(key), (outputs, inputs, 3, 3))
        zeros, ones = jnp.zeros(outputs), jnp.ones(outputs)
        return {"kernel": kernel, "bias": zeros, "scale": ones, "shift": zeros}

    weight = 0.02 * jax.random.normal(jax.random.key(2), (32 * 7 * 7, classes))
    return [block(0, 1, 16), block(1, 16, 32), {"weight": weight, "bias": jnp.zeros(classes)}]


def measure(batch: int, classes: int, private: bool, rounds: int = 5) -> dict[str, float]:
    """Return the median processor time of a compiled step, and the compiler's memory for it."""
    parameters = _parameters(classes)
    images = jax.random.normal(jax.random.key(3), (batch, 1, 28, 28))
    labels = jnp.arange(batch) % classes
    gradient, optimizer = jax.grad(loss), optax.adam(1e-6)
    if private:
        gradient = clipping.clipped_grad(
            loss, l2_clip_norm=1.0, batch_argnums=(1, 2), normalize_by=batch
        )
        noise = noise_addition.gaussian_privatizer(stddev=1.0 / batch, prng_key=jax.random.key(4))
        optimizer = optax.chain(noise, optimizer)

    @jax.jit
    def step(parameters: Any, state: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradient(parameters, images, labels), state)
        return optax.apply_updates(parameters, updates), state

    state = optimizer.init(parameters)
    compiled = step.lower(parameters, state).compile()
    seconds = []
    for _ in range(rounds + 2):
        started = time.process_time()
        parameters, state = jax.block_until_ready(compiled(parameters, state))
        seconds.append(time.process_time() - started)
    return {
        "seconds": statistics.median(seconds[2:]),
        "megabytes": compiled.memory_analysis().temp_size_in_bytes / 1e6,
    }


if __name__ == "__main__":
    batch, classes = map(int, sys.argv[1:])
    names = {"JAX, without privacy": False, "JAX-Privacy": True}
    print(json.dumps({name: measure(batch, classes, private) for name, private in names.items()}))
