"""Where tokens come from. A sequence is a function of the seed and its number in the run alone, counted over the
whole global batch: a position, the number of sequences consumed, means the same on every layout and after a
restart.

`run["data"]` names token files, each of one of these kinds, told by its name:

    PREFIX, PREFIX.bin   with PREFIX.bin and PREFIX.idx there: Megatron's indexed data set
    NAME.npy             a flat array of integers
    NAME.u16, NAME.u32   raw little-endian tokens of 16 or 32 bits

Files are memory-mapped. Each is one stream of tokens in the order it is stored, documents behind one another, cut
into windows of `sequence` tokens and the one behind them. The windows of all files are shuffled together, anew
every epoch, so that a file counts by its size. Without files, tokens are drawn. Needs numpy alone.

Where documents are kept apart, they begin where Megatron's index says, behind the token that ends one in other files,
and in drawn data in the lengths that the plan was priced for.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from itertools import accumulate, cycle, takewhile

import numpy as np

HEADER = b"MMIDIDX\x00\x00"
# Codes of Megatron-Core 0.19.2, core/datasets/indexed_dataset.py, `DType`; floats are no tokens.
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
RAW = {".u16": np.dtype("<u2"), ".u32": np.dtype("<u4")}
AT_ONCE = 1 << 20
MASK = (1 << 64) - 1


class DataError(ValueError):
    """The data cannot be read as the policy names it."""


def open_tokens(path: str) -> np.ndarray:
    """The tokens of one file, memory-mapped; what its name does not tell is refused."""
    ending = os.path.splitext(path)[1]
    try:
        if ending == ".npy":
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
            if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                raise DataError(f"`{path}` holds {tokens.dtype} of shape {tokens.shape}, no flat array of integers")
            return tokens
        if ending in RAW:
            if os.path.getsize(path) % RAW[ending].itemsize:
                raise DataError(f"`{path}` is {os.path.getsize(path)} bytes, no whole number of {RAW[ending]} tokens")
            return np.memmap(path, RAW[ending], "r")
        prefix = path.removesuffix(".bin")
        if os.path.exists(f"{prefix}.bin") and os.path.exists(f"{prefix}.idx"):
            return indexed(prefix)
    except (OSError, ValueError, EOFError) as problem:
        if isinstance(problem, DataError):
            raise
        raise DataError(f"`{path}` cannot be read: {problem}") from problem
    raise DataError(
        f"`{path}` is no token file: neither `{prefix}.bin` with `{prefix}.idx`, nor a name that ends in "
        f".npy, {' or '.join(RAW)}"
    )


def beginnings(path: str) -> np.ndarray | None:
    """The first tokens of a Megatron data set's documents, in order; none of other files, which do not say."""
    prefix = path.removesuffix(".bin")
    if os.path.splitext(path)[1] in (".npy", *RAW):
        return None
    with open(f"{prefix}.idx", "rb") as file:
        _, code, sequences, documents = struct.unpack("<QBQQ", file.read(34)[9:])
    pointers = np.memmap(f"{prefix}.idx", "<i8", "r", 34 + 4 * sequences, (sequences,))
    first = np.memmap(f"{prefix}.idx", "<i8", "r", 34 + 12 * sequences, (documents,))
    # The last entry is the end of the last document.
    return np.unique(pointers[first[first < sequences]] // np.dtype(DTYPES[code]).itemsize)


def indexed(prefix: str) -> np.ndarray:
    """The stream of a Megatron data set whose index says that sequences lie behind one another without a gap."""
    with open(f"{prefix}.idx", "rb") as file:
        head = file.read(34)
    if len(head) < 34 or head[:9] != HEADER:
        raise DataError(f"`{prefix}.idx` does not begin as a Megatron index does")
    version, code, sequences, documents = struct.unpack("<QBQQ", head[9:])
    if version != 1:
        raise DataError(f"`{prefix}.idx` has version {version}, and version 1 is known")
    if code not in DTYPES:
        raise DataError(f"`{prefix}.idx` has type code {code}, which stands for no integers")
    size, width = os.path.getsize(f"{prefix}.idx"), np.dtype(DTYPES[code]).itemsize
    # A column of modes, one byte a sequence, may follow: multimodal sets have it.
    if size - 34 - 12 * sequences - 8 * documents not in (0, sequences):
        raise DataError(f"`{prefix}.idx` is {size} bytes, not what {sequences} sequences and {documents} documents take")
    if sequences == 0:
        raise DataError(f"`{prefix}.idx` has no sequences")
    lengths = np.memmap(f"{prefix}.idx", "<i4", "r", 34, (sequences,))
    pointers = np.memmap(f"{prefix}.idx", "<i8", "r", 34 + 4 * sequences, (sequences,))
    expected = 0
    for first in range(0, sequences, AT_ONCE):
        ends = np.cumsum(lengths[first : first + AT_ONCE], dtype=np.int64) * width + expected
        starts = np.concatenate([[expected], ends[:-1]])
        if lengths[first : first + AT_ONCE].min() < 0 or not np.array_equal(pointers[first : first + AT_ONCE], starts):
            raise DataError(f"`{prefix}.idx`: sequences do not lie behind one another, and are not read as a stream")
        expected = int(ends[-1])
    if os.path.getsize(f"{prefix}.bin") != expected:
        raise DataError(f"`{prefix}.bin` is {os.path.getsize(f'{prefix}.bin')} bytes, and its index speaks of {expected}")
    return np.memmap(f"{prefix}.bin", np.dtype(DTYPES[code]).newbyteorder("<"), "r")


class Stream:
    """The sequences of a run by number."""

    def __init__(self, run: dict, sequence: int, vocab: int, documents: dict | None = None):
        self.seed, self.sequence, self.vocab = run["seed"], sequence, vocab
        self.files = [(path, open_tokens(path)) for path in run["data"]]
        windows = [max(len(tokens) - 1, 0) // sequence for _, tokens in self.files]
        self.ends = list(accumulate(windows))
        if self.files and not self.ends[-1]:
            raise DataError(f"{', '.join(run['data'])}: fewer tokens than one sequence of {sequence} and the one behind it")
        self.documents = documents
        self.begin = [beginnings(path) for path, _ in self.files] if documents else []
        mute = [path for (path, _), begin in zip(self.files, self.begin) if begin is None]
        if mute and documents["end"] is None:
            raise DataError(f"`{mute[0]}` does not say where documents end, and the policy's data.end_of_document names no token")

    def about(self) -> dict:
        """What a position is a position in; where the files lie does not enter."""
        return {"seed": self.seed, "sequence": self.sequence, "tokens": [len(tokens) for _, tokens in self.files]}

    def rows(self, first: int, count: int) -> np.ndarray:
        """[count, sequence + 1] tokens, from sequence `first` of the run on."""
        return np.stack([self.row(index) for index in range(first, first + count)])

    def row(self, index: int) -> np.ndarray:
        if not self.files:
            # Lines of constant stride, so that there is something to learn.
            start, stride = np.random.default_rng([self.seed, index]).integers(self.vocab, size=2)
            return (start + (1 + stride % 7) * np.arange(self.sequence + 1)) % self.vocab
        number, start = self.place(index)
        path, tokens = self.files[number]
        row = tokens[start : start + self.sequence + 1].astype(np.int64)
        if row.min() < 0 or row.max() >= self.vocab:
            worst = row.max() if row.min() >= 0 else row.min()
            raise DataError(f"`{path}` has token {worst}, and the model knows 0 to {self.vocab - 1}")
        return row


    def place(self, index: int) -> tuple[int, int]:
        """The file of a sequence, and its first token there."""
        epoch, place = divmod(index, self.ends[-1])
        window = shuffled(place, self.ends[-1], mixed(mixed(self.seed) ^ epoch))
        number = bisect_right(self.ends, window)
        return number, (window - (self.ends[number - 1] if number else 0)) * self.sequence

    def starts(self, index: int) -> list[int]:
        """Where the documents of a sequence begin; what goes on from the sequence before begins at zero."""
        if not self.files:
            lengths = cycle(self.documents["lengths"])
            return list(takewhile(lambda start: start < self.sequence, accumulate(lengths, initial=0)))
        number, start = self.place(index)
        begin = self.begin[number]
        if begin is None:
            ends = np.flatnonzero(self.files[number][1][start : start + self.sequence - 1] == self.documents["end"])
            inside = (ends + 1).tolist()
        else:
            first, past = np.searchsorted(begin, (start + 1, start + self.sequence))
            inside = (begin[first:past] - start).tolist()
        return [0, *inside]


def mixed(x: int) -> int:
    """Any 64 bits into any others (splitmix64, Steele et al. 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def shuffled(index: int, count: int, key: int) -> int:
    """Where a permutation of `count` numbers, chosen by `key`, puts `index`, without writing it down: a Feistel
    network over the next power of four, walked until it lands inside."""
    half = max((count - 1).bit_length() + 1, 2) // 2
    while True:
        left, right = index >> half, index & ((1 << half) - 1)
        for turn in range(4):
            left, right = right, left ^ (mixed(key ^ mixed(right + (turn << 32))) & ((1 << half) - 1))
        index = (left << half) | right
        if index < count:
            return index
