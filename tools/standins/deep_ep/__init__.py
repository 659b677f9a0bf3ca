"""Stands in for DeepEP where one rank of an expert-parallel group runs alone (torch's fake process group).

Allocates what DeepEP's own host code does, on its own stream and for as long (deepseek-ai/DeepEP, csrc/legacy/buffer.hpp
`intranode_dispatch`, `internode_dispatch`, `intranode_combine`, `internode_combine`), and waits for the counts as it does. Nothing travels: every
other rank is taken to send this one what it sends itself. The buffers behind the library's kernels are not allocated;
`Config` says their bytes (csrc/legacy/config.hpp).
"""

import torch

from .utils import EventHandle, EventOverlap  # noqa: F401 (Megatron imports them from here and there)

PEERS = 8  # LEGACY_NUM_MAX_NVL_PEERS


class Config:
    def __init__(self, num_sms, nvl_received, rdma_received):
        self.num_sms, self.nvl_received, self.rdma_received = num_sms, nvl_received, rdma_received

    def get_nvl_buffer_size_hint(self, hidden_bytes, ranks):
        slots = self.num_sms // 2 * min(ranks, PEERS)
        heads = slots * (2 * max(ranks // PEERS, 1) + 3) * 4
        return (heads + slots * self.nvl_received * (hidden_bytes + 8 + 128 * (8 + 4 + 4)) + 127) // 128 * 128

    def get_rdma_buffer_size_hint(self, hidden_bytes, ranks):
        if ranks <= PEERS:
            return 0
        slots = self.num_sms // 2 * (ranks // PEERS)
        heads = slots * (PEERS * 2 + 2) * 2 * 4
        return (heads + 2 * slots * self.rdma_received * (hidden_bytes + 8 + 128 * (8 + 4 + 4) + 16) + 127) // 128 * 128


class Buffer:
    num_sms = 20

    def __init__(self, group, num_nvl_bytes=0, num_rdma_bytes=0):
        self.group, self.num_nvl_bytes, self.num_rdma_bytes = group, num_nvl_bytes, num_rdma_bytes
        self.ranks, self.rank = group.size(), group.rank()
        self.stream = torch.cuda.Stream()

    @staticmethod
    def set_num_sms(count):
        Buffer.num_sms = count

    @staticmethod
    def get_dispatch_config(ranks):
        received = {96: 480, 128: 560, 144: 720, 160: 720}.get(ranks, 256 if ranks <= PEERS else 288)
        return Config(Buffer.num_sms, received, 128)

    get_combine_config = get_dispatch_config

    def _enter(self, allocate_on_comm_stream):
        compute = torch.cuda.current_stream()
        if allocate_on_comm_stream:
            torch.cuda.set_stream(self.stream)
        self.stream.wait_stream(compute)
        return compute

    def _leave(self, compute, allocate_on_comm_stream, tensors):
        """Both streams may still read what either made."""
        for tensor in tensors:
            if tensor is not None:
                tensor.record_stream(self.stream)
                if allocate_on_comm_stream:
                    tensor.record_stream(compute)
        event = EventHandle(self.stream)
        if allocate_on_comm_stream:
            torch.cuda.set_stream(compute)
        return EventOverlap(event)

    def get_dispatch_layout(
        self, topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    ):
        compute = self._enter(allocate_on_comm_stream)
        tokens, ints = topk_idx.shape[0], dict(dtype=torch.int32, device="cuda")
        per_rank, per_expert = torch.empty(self.ranks, **ints), torch.empty(num_experts, **ints)
        per_node = torch.empty(self.ranks // PEERS, **ints) if self.ranks > PEERS else None
        in_rank = torch.empty(tokens, self.ranks, dtype=torch.bool, device="cuda")
        event = self._leave(compute, allocate_on_comm_stream, [topk_idx, per_rank, per_expert, per_node, in_rank])
        return per_rank, per_node, per_expert, in_rank, event

    def dispatch(
        self,
        x,
        handle=None,
        num_tokens_per_rank=None,
        num_tokens_per_rdma_rank=None,
        is_token_in_rank=None,
        num_tokens_per_expert=None,
        topk_idx=None,
        topk_weights=None,
        previous_event=None,
        async_finish=False,
        allocate_on_comm_stream=False,
    ):
        if handle is not None:
            compute = self._enter(allocate_on_comm_stream)
            own, count = handle["own"], handle["count"]
            received = self._received(x, own, count)
            event = self._leave(compute, allocate_on_comm_stream, [x, received])
            return received, None, None, None, None, event
        local = num_tokens_per_expert.shape[0] // self.ranks
        first = self.rank * local
        mine = (topk_idx >= first) & (topk_idx < first + local)
        # The host waits for counts here, as DeepEP's does.
        own = mine.any(dim=1).nonzero().flatten()
        counts = [c * self.ranks for c in torch.bincount((topk_idx - first)[mine], minlength=local).tolist()]
        node = 0
        if self.ranks > PEERS:
            wide = local * PEERS
            near = (topk_idx // wide) == self.rank // PEERS
            node = int(near.any(dim=1).sum()) * (self.ranks // PEERS)
        compute = self._enter(allocate_on_comm_stream)
        count, tokens, ints = own.shape[0] * self.ranks, x.shape[0], dict(dtype=torch.int32, device="cuda")
        channels = Buffer.num_sms // 2
        if self.ranks > PEERS:
            nodes = self.ranks // PEERS
            kept = [
                is_token_in_rank,
                torch.empty(nodes, channels, **ints),
                torch.empty(self.ranks, channels, **ints),
                torch.empty(nodes, channels, **ints),
                torch.empty(nodes, **ints),
                torch.empty(self.ranks, channels, **ints),
                torch.empty(self.ranks, **ints),
                torch.empty(count, 8, dtype=torch.uint8, device="cuda"),
                torch.empty(tokens, nodes, **ints),
                torch.empty(node, PEERS, **ints),
            ]
        else:
            kept = [
                torch.empty(self.ranks, self.ranks, **ints),
                torch.empty(self.ranks, channels, **ints),
                torch.empty(self.ranks, channels, **ints),
                torch.empty(count, **ints),
                is_token_in_rank,
                torch.empty(tokens, self.ranks, **ints),
            ]
        received = self._received(x, own, count)
        indices = self._received(torch.where(mine, topk_idx - first, -1), own, count)
        weights = self._received(topk_weights, own, count)
        made = [x, topk_idx, topk_weights, received, indices, weights, *kept]
        event = self._leave(compute, allocate_on_comm_stream, made)
        handle = dict(kept=kept, own=own, count=count, tokens=tokens)
        return received, indices, weights, counts, handle, event

    def _received(self, x, own, count):
        out = torch.empty(count, *x.shape[1:], dtype=x.dtype, device="cuda")
        rows = own.shape[0]
        for rank in range(self.ranks if rows else 0):
            torch.index_select(x, 0, own, out=out[rank * rows : (rank + 1) * rows])
        return out

    def combine(
        self,
        x,
        handle,
        topk_weights=None,
        previous_event=None,
        async_finish=False,
        allocate_on_comm_stream=False,
    ):
        compute = self._enter(allocate_on_comm_stream)
        out, weights = self._combined(x, handle), None
        if topk_weights is not None:
            weights = self._combined(topk_weights, handle)
        event = self._leave(compute, allocate_on_comm_stream, [x, topk_weights, out, weights])
        return out, weights, event

    def _combined(self, x, handle):
        out = torch.empty(handle["tokens"], *x.shape[1:], dtype=x.dtype, device="cuda")
        out.zero_()
        out.index_copy_(0, handle["own"], x[: handle["own"].shape[0]])
        return out
