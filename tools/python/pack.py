"""A wheel of the extension as `cargo test` compiled it: what maturin would make, without compiling everything a second
time for the features of one package alone.
usage: pack.py LIB_NATIVE OUT"""

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

library, out = Path(sys.argv[1]), Path(sys.argv[2])
clone = Path(__file__).resolve().parents[2]
version = re.search(r'^version = "(.+)"', (clone / "Cargo.toml").read_text(), re.M)[1]
scripts = re.search(r'^\[project\.scripts\]\n((?:.+\n)+)', (clone / "pyproject.toml").read_text(), re.M)[1]
about = f"shardwright-{version}.dist-info"
tag = "cp39-abi3-linux_" + sys.implementation._multiarch.split("-")[0]

files = {
    f"shardwright/{path.relative_to(clone / 'python/shardwright')}": path.read_bytes()
    for path in sorted((clone / "python/shardwright").rglob("*"))
    if path.is_file() and "__pycache__" not in path.parts
}
files["shardwright/_native.abi3.so"] = library.read_bytes()
files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: shardwright\nVersion: {version}\n".encode()
files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: pack.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
files[f"{about}/entry_points.txt"] = ("[console_scripts]\n" + scripts.replace('"', "")).encode()


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content in files.items())
files[f"{about}/RECORD"] = (record + f"{about}/RECORD,,\n").encode()
out.mkdir(parents=True, exist_ok=True)
wheel = out / f"shardwright-{version}-{tag}.whl"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
    for name, content in files.items():
        archive.writestr(name, content)
print(wheel)
