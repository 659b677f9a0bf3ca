"""check_jax.py FOLDER: every FOLDER/RECIPE/NAME/table.json on eight forced CPU devices against one device."""

import json
import os
import pathlib
import sys

os.environ.update({"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"})
STEPS, TOLERANCE, RATE = 5, 1e-5, 0.3


def main():
    cases = sorted(pathlib.Path(sys.argv[1]).glob("*/*/table.json"))
    sys.path.insert(0, str(cases[0].parent))  # every case carries the same modules
    import table as tables
    import train

    baselines, wrong = {}, 0
    for path in cases:
        raw = {**json.loads(path.read_text()), "learning_rate": RATE}
        table = tables.parse(raw)
        if raw["recipe"] not in baselines:
            baselines[raw["recipe"]] = train.run_jax(table, STEPS, False)
        one = baselines[raw["recipe"]]
        many = train.run_jax(table, STEPS, True)
        worst = max(abs(a - b) / abs(b) for a, b in zip(many, one, strict=True))
        wrong += worst > TOLERANCE
        print(f"{'ok' if worst <= TOLERANCE else 'DIFFERS'} {raw['recipe']} {path.parent.name} {table.axes}: "
              f"{many[0]:.6f} → {many[-1]:.6f}, worst difference {worst:.1e}", flush=True)  # fmt: skip
    raw = json.loads(cases[0].read_text())
    raw["parameters"]["head.weight"] = ["model", "no-such-axis"]
    try:
        tables.parse(raw)
        print("a spoilt table was ACCEPTED")
        wrong += 1
    except tables.TableError as refusal:
        print(f"a spoilt table is refused: {refusal}")
    print(f"xla-spmd: {len(cases) - wrong} of {len(cases)} tables accepted by JAX with the loss of one device")
    sys.exit(1 if wrong or not cases else 0)


if __name__ == "__main__":
    main()
