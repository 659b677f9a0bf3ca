"""The run under JAX, on TPUs or on forced CPU devices: micro-steps and an update, jitted over the table's mesh."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

import model_jax
import table as tables
from initial import initial
from lines import Peak
from optimizer import STATE, clip_scale, norm_of, update
from tensors import Reader, Tensor

# A balancing bias is no parameter; in a checkpoint it stands where the torch reference has its buffer.
BIAS = ".router.expert_bias"


class JaxRun:
    """Parameters and optimizer state where the table puts them, and the steps that move them."""

    def __init__(self, table: tables.Table, is_sharded: bool):
        nodes = int(os.environ.get("NNODES", "1"))
        if nodes > 1 and not jax.distributed.is_initialized():
            address = f"{os.environ['JAX_COORDINATOR_IP']}:{os.environ['JAX_COORDINATOR_PORT']}"
            jax.distributed.initialize(address, nodes, int(os.environ["NODE_RANK"]))
        self.table, raw = table, table.raw
        if raw["model"]["unsupported"]:
            raise tables.TableError(f"the reference model has no {', '.join(raw['model']['unsupported'])}")
        if is_sharded:
            mesh = tables.jax_mesh(table)
            self.shardings = tables.for_jax(table, mesh)
            self.whole = jax.sharding.NamedSharding(mesh, tables.jax_spec([]))
            self.data = jax.sharding.NamedSharding(mesh, tables.jax_spec(raw["data"]))
        else:
            self.whole = self.data = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            self.shardings = dict.fromkeys(table.parameters, self.whole)
        deviation = raw["model"]["init_std"]
        first = {path: initial(path, raw["shapes"][path], deviation) for path in table.parameters}
        self.params = {path: self.put(value, self.shardings[path]) for path, value in first.items()}
        self.biases = {at: self.put(np.asarray(bias), self.whole) for at, bias in model_jax.zero_biases(raw["model"]).items()}
        kinds = raw["optimizer_of"]
        self.state = {path: {name: self.fresh(path, name) for name in STATE[kinds[path]]} for path in table.parameters}
        state = {path: {name: self.sharding(path, name) for name in kept} for path, kept in self.state.items()}
        # Loss, gradients, and how often each expert was chosen.
        out = (self.whole, self.shardings, self.whole)
        given = (self.shardings, self.data, self.whole)
        self.first = jax.jit(self.forward_backward, in_shardings=given, out_shardings=out)
        self.more = jax.jit(self.accumulate, in_shardings=(*out, *given), out_shardings=out, donate_argnums=(0, 1, 2))
        self.balance = jax.jit(lambda biases, counts: model_jax.moved_biases(raw["model"], biases, counts))
        places = (self.shardings, state)
        given = (*places, self.shardings, self.whole)
        self.apply = jax.jit(self.moved, in_shardings=given, out_shardings=(*places, self.whole), donate_argnums=(0, 1))
        # Of the last step's gradients, before they were clipped.
        self.norm: float | None = None

    def put(self, value: np.ndarray, sharding) -> jax.Array:
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def sharding(self, path: str, name: str):
        return self.whole if name == "step" else self.shardings[path]

    def fresh(self, path: str, name: str) -> jax.Array:
        shape = () if name == "step" else tuple(self.table.raw["shapes"][path])
        return self.put(np.zeros(shape, np.float32), self.sharding(path, name))

    def forward_backward(self, params: dict, tokens, biases: dict) -> tuple:
        """One micro-step's part of the loss and of the gradients of what is descended, and its choices of experts."""
        model, count = self.table.raw["model"], self.table.raw["batch"]["microbatches"]

        def descended(p):
            total, beside = model_jax.loss(model, p, tokens, biases)
            return total / count, beside

        (_, (value, counts)), grads = jax.value_and_grad(descended, has_aux=True)(params)
        return value / count, grads, counts

    def accumulate(self, value, grads: dict, counts: dict, params: dict, tokens, biases: dict) -> tuple:
        return jax.tree.map(jnp.add, (value, grads, counts), self.forward_backward(params, tokens, biases))

    def moved(self, params: dict, state: dict, grads: dict, factor) -> tuple[dict, dict, jax.Array]:
        raw = self.table.raw
        norm = norm_of(list(grads.values()))
        scale = clip_scale(norm, raw["run"]["clip"])
        values, kept = {}, {}
        for path, parameter in params.items():
            kind = raw["optimizer_of"][path]
            gradient, options = grads[path] * scale, raw["optimizers"][kind]
            values[path], kept[path] = update(kind, options, parameter, gradient, state[path], factor)
        return values, kept, norm

    def tokens(self, stream, position: int, count: int) -> jax.Array:
        """Each device its rows, read by the process that drives it."""

        def rows(index):
            first, end, _ = index[0].indices(count)
            return stream.rows(position + first, end - first)[:, index[1]].astype(np.int32)

        return jax.make_array_from_callback((count, stream.sequence + 1), self.data, rows)

    def step(self, stream, position: int, factor: float) -> float:
        """A global batch, one micro-step behind another."""
        size = self.table.raw["batch"]
        count = size["global_batch"] // size["microbatches"]
        done = self.first(self.params, self.tokens(stream, position, count), self.biases)
        for number in range(1, size["microbatches"]):
            done = self.more(*done, self.params, self.tokens(stream, position + number * count, count), self.biases)
        value, grads, counts = done
        self.biases = self.balance(self.biases, counts)
        self.params, self.state, norm = self.apply(self.params, self.state, grads, jnp.float32(factor))
        self.norm = float(norm)
        return float(value)

    def about(self) -> tuple[dict[str, str], int, str]:
        """Versions, devices of the run, and their kind."""
        return {"jax": jax.__version__}, jax.device_count(), jax.devices()[0].device_kind

    def peaks(self) -> list[Peak]:
        """The most that XLA held on a device of this host since the start; nothing where the backend does not say."""
        held = {device.id: (device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()}
        rank = max(held, key=lambda rank: held[rank])
        return [Peak("max_used", held[rank], rank)] if held[rank] else []

    def arrays(self) -> dict[str, jax.Array]:
        model = {f"model.{path}": value for path, value in self.params.items()}
        model |= {f"model.{at}{BIAS}": bias for at, bias in self.biases.items()}
        return model | {f"optimizer.{p}.{n}": value for p, state in self.state.items() for n, value in state.items()}

    def tensors(self) -> dict[str, Tensor]:
        def get(value: jax.Array) -> np.ndarray:
            if jax.process_count() > 1:
                value = multihost_utils.process_allgather(value, tiled=True)
            return np.asarray(value)

        return {key: (v.shape, v.dtype.name, lambda v=v: get(v)) for key, v in self.arrays().items()}

    def load(self, reader: Reader) -> None:
        for key, value in self.arrays().items():
            fresh = jax.make_array_from_callback(value.shape, value.sharding, lambda index, key=key: reader.block(key, index))
            if key.endswith(BIAS):
                self.biases[key.removeprefix("model.").removesuffix(BIAS)] = fresh
            elif key.startswith("model."):
                self.params[key.removeprefix("model.")] = fresh
            else:
                path, _, name = key.removeprefix("optimizer.").rpartition(".")
                self.state[path][name] = fresh

    def is_writer(self) -> bool:
        return jax.process_index() == 0

    def meet(self, why: str) -> None:
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(why)

    def agreed(self, is_asked: bool) -> bool:
        """Whether any process was asked to end."""
        return bool(multihost_utils.process_allgather(np.int32(is_asked)).any()) if jax.process_count() > 1 else is_asked
