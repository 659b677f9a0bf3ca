"""A layer of the pattern's `M`, whose mixer is chosen by the layer's number."""

from __future__ import annotations

from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules

# `MultiTokenPredictionLayer` names its inner stack so, and numbers that stack's layers from one again.
PREDICTION = ".mtp_model_layer."


class ChosenLayer(MambaLayer):
    """Megatron builds every layer of a kind from one spec, and numbers layers from one over the whole pattern, on
    whatever stage and chunk they are (`HybridStack.__init__`: `i + 1 + pp_layer_offset`)."""

    def __init__(
        self,
        config,
        submodules: MambaLayerSubmodules,
        layer_number: int = 1,
        pg_collection=None,
        pp_layer_offset: int = 0,
        name: str | None = None,
        *,
        choices: tuple[dict, ...],
    ):
        lists = "mtp_layers" if PREDICTION in f"{name or ''}." else "layers"
        found = [choice["parts"] for choice in choices if layer_number - 1 in choice[lists]]
        if found:
            submodules = found[0]
        super().__init__(config, submodules, layer_number, pg_collection, pp_layer_offset, name)
