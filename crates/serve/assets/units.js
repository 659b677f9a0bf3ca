// Quantities in words: GiB are 2^30 bytes, three digits count.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const sign = number < 0 ? "−" : "";
  let value = Math.abs(number);
  let unit = 0;
  while (value >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${sign}${unit === 0 ? value : digits(value)} ${SIZES[unit]}`;
}

// With its sign, for differences.
export function change(number) {
  return number > 0 ? `+${bytes(number)}` : bytes(number);
}

export function seconds(number) {
  if (number === null || number === undefined) return "–";
  if (number >= 1) return `${number >= 100 ? Math.round(number) : number.toFixed(2)} s`;
  if (number >= 1e-3) return `${digits(number * 1e3)} ms`;
  return `${digits(number * 1e6)} µs`;
}

export function exact(number) {
  return Math.round(number).toLocaleString("en-US");
}

export function count(number) {
  const scales = [
    [1e12, " T"],
    [1e9, " B"],
    [1e6, " M"],
    [1e3, " k"],
  ];
  const [by, unit] = scales.find(([by]) => number >= by) ?? [1, ""];
  return by === 1 ? String(number) : digits(number / by) + unit;
}

// How much longer something takes, from the ratio: "+12%", "same".
export function slower(ratio) {
  if (ratio === null || ratio === undefined) return "unknown";
  const more = Math.round((ratio - 1) * 100);
  return more === 0 ? "same" : `${more > 0 ? "+" : "−"}${Math.abs(more)}%`;
}

export function percent(share, places = 0) {
  return `${(share * 100).toFixed(places)}%`;
}

function digits(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

// "0-3,8" from [0, 1, 2, 3, 8].
export function ranges(numbers) {
  const runs = [];
  for (const number of numbers) {
    const last = runs[runs.length - 1];
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}

// One word of a shell's line.
export function quoted(word) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", `'\\''`)}'`;
}
