"""check_data.py: data sets that Megatron-Core's own builder wrote, and plain token files, as the emitted `data.py`
reads them. Runs in Megatron's environment."""

import os
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "crates/launch/assets/fsdp2"))
import data
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
import torch

failed = 0


def tell(name, is_right, detail=""):
    global failed
    failed += not is_right
    print(f"{'ok' if is_right else 'WRONG'} {name}{f': {detail}' if detail else ''}")


def refused(name, said, act):
    try:
        act()
    except data.DataError as refusal:
        return tell(f"{name} is refused", said in str(refusal), str(refusal).replace(os.getcwd(), "."))
    tell(f"{name} is refused", False, "it was read")


def build(prefix, dtype, documents):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(f"{prefix}.idx")
    return np.concatenate(documents)


def windows(stream):
    """An epoch of rows, as a set."""
    return {tuple(map(int, stream.row(index))) for index in range(stream.ends[-1])}


def main():
    draw = np.random.default_rng(0)
    documents = [draw.integers(1000, size=size) for size in (1, 17, 100, 5, 64, 301)]
    run = {"seed": 3, "data": []}
    for dtype in (np.uint16, np.int32, np.int64):
        prefix = f"set-{np.dtype(dtype).name}"
        tokens = build(prefix, dtype, documents)
        code = DType.code_from_dtype(dtype)
        tell(f"{prefix} (code {code})", np.array_equal(data.open_tokens(prefix), tokens) and np.array_equal(data.open_tokens(f"{prefix}.bin"), tokens))
        theirs = IndexedDataset(prefix)
        tell(f"{prefix} as Megatron reads it", np.array_equal(np.concatenate([theirs[i] for i in range(len(theirs))]), tokens))
    np.save("flat.npy", tokens)
    tokens.astype("<u2").tofile("raw.u16")
    tokens.astype("<u4").tofile("raw.u32")
    for path in ("flat.npy", "raw.u16", "raw.u32"):
        tell(path, np.array_equal(data.open_tokens(path), tokens))
    expected = {tuple(map(int, tokens[i * 8 : i * 8 + 9])) for i in range((len(tokens) - 1) // 8)}
    orders = []
    for path in ("set-uint16", "flat.npy", "raw.u32"):
        stream = data.Stream({**run, "data": [path]}, 8, 1000)
        orders.append([tuple(map(int, stream.row(i))) for i in range(2 * stream.ends[-1])])
        tell(f"{path}: every window once an epoch", windows(stream) == expected and len(expected) == stream.ends[-1])
    count = len(expected)
    tell("one order whatever the format", orders[0] == orders[1] == orders[2])
    tell("epochs are shuffled anew", orders[0][:count] != orders[0][count:] and sorted(orders[0][:count]) == sorted(orders[0][count:]))
    tell("another seed, another order", [tuple(map(int, data.Stream({"seed": 4, "data": ["raw.u16"]}, 8, 1000).row(i))) for i in range(count)] != orders[0][:count])
    both = data.Stream({**run, "data": ["raw.u16", "flat.npy"]}, 8, 1000)
    tell("two files, windows of both", both.ends[-1] == 2 * count and len([r for r in range(2 * count) if tuple(map(int, both.row(r))) in expected]) == 2 * count)
    rows = both.rows(5, 3)
    tell("rows by number", np.array_equal(rows[1], both.row(6)) and rows.shape == (3, 9))

    # Where documents begin: by Megatron's index, and behind a token that ends them.
    begin = set(np.cumsum([0, *map(len, documents)])[:-1].tolist())
    ended = np.concatenate([np.append(document[1:] % 900, 999) if len(document) > 1 else [999] for document in documents])
    ended.astype("<u2").tofile("ended.u16")
    for path in ("set-uint16", "set-int32.bin", "ended.u16"):
        stream = data.Stream({**run, "data": [path]}, 8, 1000, {"lengths": [], "end": 999})
        firsts = [stream.place(index)[1] for index in range(count)]
        right = [sorted({0} | {at - first for at in begin if first < at < first + 8}) for first in firsts]
        tell(f"{path}: documents of every window", [stream.starts(index) for index in range(count)] == right)
    drawn = data.Stream({"seed": 1, "data": []}, 16, 100, {"lengths": [5, 3], "end": None})
    tell("drawn documents", drawn.starts(7) == [0, 5, 8, 13])
    refused("documents that nothing ends", "data.end_of_document", lambda: data.Stream({**run, "data": ["raw.u16"]}, 8, 1000, {"lengths": [], "end": None}))

    head = pathlib.Path("set-int32.idx").read_bytes()
    for name, change in (("bad-head", b"X" + head[1:]), ("bad-version", head[:9] + b"\x02" + head[10:]), ("bad-code", head[:17] + b"\x06" + head[18:]), ("bad-size", head[:-1]), ("bad-pointer", head[: 34 + 4 * 6 + 8] + b"\x09" + head[34 + 4 * 6 + 9 :])):
        pathlib.Path(f"{name}.idx").write_bytes(change)
        os.symlink("set-int32.bin", f"{name}.bin")
    refused("another header", "does not begin", lambda: data.open_tokens("bad-head"))
    refused("another version", "version 2", lambda: data.open_tokens("bad-version"))
    refused("floats", "type code 6", lambda: data.open_tokens("bad-code"))
    refused("an index cut short", "not what", lambda: data.open_tokens("bad-size"))
    refused("an index with gaps", "do not lie behind one another", lambda: data.open_tokens("bad-pointer"))
    pathlib.Path("set-int64.bin").write_bytes(pathlib.Path("set-int64.bin").read_bytes()[:-8])
    refused("tokens cut short", "its index speaks of", lambda: data.open_tokens("set-int64"))
    refused("a name that tells nothing", "is no token file", lambda: data.open_tokens("corpus"))
    refused("a file that is not there", "cannot be read", lambda: data.open_tokens("corpus.u16"))
    refused("floats in .npy", "no flat array", lambda: (np.save("f.npy", np.zeros(4)), data.open_tokens("f.npy")))
    refused("half a token", "no whole number", lambda: (pathlib.Path("odd.u16").write_bytes(b"abc"), data.open_tokens("odd.u16")))
    refused("a token the model does not know", "0 to 99", lambda: windows(data.Stream({**run, "data": ["raw.u16"]}, 8, 100)))
    refused("too few tokens", "fewer tokens than one sequence", lambda: data.Stream({**run, "data": ["raw.u16"]}, 4096, 1000))
    print(f"data: {failed} wrong")
    sys.exit(1 if failed else 0)


with tempfile.TemporaryDirectory() as tmp:
    os.chdir(tmp)
    main()
