// The case that is looked at, and the address that holds it: a link is an answer.
//
// #r=nam56r&on=8xH200&tp=2&tab=memory&pin=r%3Dnam56r%26on%3D8xH200; a recipe that came as text stands in `text`,
// deflated and in base64url.

const NUMBERS = ["tp", "cp", "pp", "vpp", "ep", "etp", "dp", "zero", "mbs", "gbs", "microbatches", "vocab_multiple"];
const SHARES = ["offload_optimizer", "offload_activations"];
const SWITCHES = ["sp", "ce_fusion", "fp8_param_gather", "offload_params"];
const LISTS = ["with", "without", "boundaries"];
const WORDS = [
  "seq",
  "schedule",
  "recompute",
  "mode",
  "engine",
  "balance",
  "precision",
  "optimizer",
  "gradients",
  "engine_args",
  "headroom",
  "tokens",
  "days",
  "price_per_device_hour",
];

// Longer links are cut by chats and browsers.
const LONGEST_LINK = 30_000;

export const TABS = ["model", "memory", "ownership", "time", "choose", "launch", "receipts"];

export const START = { recipe: "nam56r", on: "8xH200" };

export const LAYOUT = [
  "tp",
  "sp",
  "cp",
  "pp",
  "vpp",
  "ep",
  "etp",
  "dp",
  "zero",
  "mbs",
  "gbs",
  "microbatches",
  "seq",
  "schedule",
  "recompute",
  "mode",
  "boundaries",
  "balance",
  "engine",
  "vocab_multiple",
];
const STATE = [
  "precision",
  "optimizer",
  "gradients",
  "ce_fusion",
  "fp8_param_gather",
  "offload_optimizer",
  "offload_params",
  "offload_activations",
  "engine_args",
];
const RECIPE = ["recipe", "with", "without"];

// Keys of a case that each question takes.
const TAKES = {
  params: [...RECIPE, "mode"],
  check: [...RECIPE, "on", ...LAYOUT],
  choices: [...RECIPE, "on", ...LAYOUT, ...STATE],
  fit: [...RECIPE, "on", ...LAYOUT, ...STATE, "headroom"],
  stages: [...RECIPE, "on", ...LAYOUT, ...STATE],
  schedule: [...RECIPE, "on", ...LAYOUT, ...STATE],
  launch: [...RECIPE, "on", ...LAYOUT, ...STATE, "tokens"],
  plan: [...RECIPE, "on", ...LAYOUT, ...STATE, "headroom"],
  splits: [...RECIPE, ...LAYOUT],
  mesh: ["on", ...LAYOUT],
};

// A case as the body of a question.
export function body(kase, question, more = {}) {
  const out = {};
  for (const key of TAKES[question]) {
    if (kase[key] === undefined) continue;
    out[key] = key === "recipe" && kase.text !== undefined ? { name: kase.recipe, text: kase.text } : kase[key];
    if (key === "engine_args") out[key] = [kase[key]];
  }
  return { ...out, ...more };
}

// A case whose layout is said in full, as an answer resolved it: `splits` and `mesh` know no cluster.
export function resolved(kase, layout) {
  const out = {
    recipe: kase.recipe,
    text: kase.text,
    with: kase.with,
    without: kase.without,
    vocab_multiple: kase.vocab_multiple,
  };
  for (const key of [
    "world",
    "tp",
    "sp",
    "cp",
    "pp",
    "vpp",
    "ep",
    "etp",
    "dp",
    "mbs",
    "microbatches",
    "seq",
    "schedule",
    "recompute",
    "mode",
    "engine",
  ]) {
    if (layout[key] !== null && layout[key] !== undefined) out[key] = layout[key];
  }
  out.zero = Number(layout.zero);
  if (layout.boundaries) out.boundaries = layout.boundaries;
  return out;
}

// What a person types for a case, behind a command's name.
export function words(kase) {
  const out = [kase.text === undefined ? kase.recipe : `${kase.recipe}.${isJson(kase.text) ? "json" : "toml"}`];
  for (const key of ["with", "without", ...LAYOUT, ...STATE, "headroom", "on"]) {
    const value = kase[key];
    const flag = key.replaceAll("_", "-");
    if (value === undefined) continue;
    if (value === true) out.push(`--${flag}`);
    else if (value === false) {
      if (key === "sp") out.push("--no-sp");
    } else out.push(`--${flag}`, Array.isArray(value) ? value.join(",") : String(value));
  }
  return out;
}

export function isJson(text) {
  return text.trimStart().startsWith("{");
}

// Flags of an answer, as `--tp 2 --no-sp`, laid over the recipe and cluster of a case. What follows from the rest is left
// to follow: replicas from the world, microbatches from the batch; so that one degree can be changed alone.
export function fromFlags(kase, flags) {
  const { recipe, text, on, headroom, tokens, days, price_per_device_hour } = kase;
  const { dp, microbatches, seq, ...said } = parseFlags(flags);
  const out = { recipe, text, on, with: kase.with, without: kase.without, headroom, tokens, days, price_per_device_hour, ...said, seq: kase.seq && seq };
  // One replica is not said.
  if (microbatches) out.gbs = (dp ?? 1) * microbatches * (said.mbs ?? 1);
  return out;
}

// The same of one change, as a lever says it.
export function parseFlags(flags) {
  const out = {};
  const parts = flags.match(/'[^']*'|"[^"]*"|\S+/g) ?? [];
  for (let at = 0; at < parts.length; at += 1) {
    if (!parts[at].startsWith("--")) continue;
    const key = parts[at].slice(2).replaceAll("-", "_");
    if (key === "no_sp") out.sp = false;
    else if (SWITCHES.includes(key)) out[key] = true;
    else if (key === "engine_args" || key === "on") {
      at += 1;
      out[key] = unquoted(parts[at] ?? "");
    } else {
      at += 1;
      const value = typed(key, unquoted(parts[at] ?? ""));
      if (value !== undefined) out[key] = value;
    }
  }
  return out;
}

function unquoted(word) {
  return word.replace(/^(['"])(.*)\1$/s, "$2");
}

// A value of a key from its text; nothing for what is no key of a case.
function typed(key, text) {
  if (NUMBERS.includes(key)) return /^\d{1,9}$/.test(text) ? Number(text) : undefined;
  if (SHARES.includes(key)) return Number.isFinite(Number(text)) ? Number(text) : undefined;
  if (SWITCHES.includes(key)) return text === "true" ? true : text === "false" ? false : undefined;
  if (LISTS.includes(key)) {
    const list = text.split(",").filter((part) => part !== "");
    return key === "boundaries" ? list.map(Number) : list;
  }
  return WORDS.includes(key) ? text : undefined;
}

async function packed(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(word) {
  const binary = atob(word.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
}

async function caseToParameters(kase) {
  const out = new URLSearchParams({ r: kase.recipe, on: kase.on });
  for (const key of [...NUMBERS, ...SHARES, ...SWITCHES, ...LISTS, ...WORDS]) {
    const value = kase[key];
    if (value !== undefined) out.set(key, Array.isArray(value) ? value.join(",") : String(value));
  }
  if (kase.text !== undefined) out.set("text", await packed(kase.text));
  return out;
}

async function caseFromParameters(given) {
  const out = { recipe: given.get("r") || START.recipe, on: given.get("on") || START.on };
  for (const [key, value] of given) {
    const read = typed(key, value);
    if (read !== undefined) out[key] = read;
  }
  if (given.has("text")) out.text = await unpacked(given.get("text"));
  return out;
}

// The address of a state, or why there is none.
export async function toAddress(state) {
  const out = await caseToParameters(state.case);
  if (state.tab !== "memory") out.set("tab", state.tab);
  if (state.pin) out.set("pin", (await caseToParameters(state.pin)).toString());
  if (state.tab === "ownership" && state.rank !== undefined) out.set("rank", String(state.rank));
  if (state.tab === "ownership" && state.tensor) out.set("tensor", state.tensor);
  // Colons, slashes and commas are allowed behind `#` and read better as they are.
  const text = out
    .toString()
    .replaceAll("%3A", ":")
    .replaceAll("%2C", ",")
    .replaceAll("%2F", "/")
    .replaceAll("%40", "@");
  return text.length > LONGEST_LINK ? { tooLong: text.length } : { address: `#${text}` };
}

export async function fromAddress(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const tab = TABS.includes(given.get("tab")) ? given.get("tab") : "memory";
  const state = { case: { ...START }, tab, pin: null };
  try {
    state.case = await caseFromParameters(given);
    if (given.has("pin")) state.pin = await caseFromParameters(new URLSearchParams(given.get("pin")));
  } catch {
    state.broken = true;
  }
  if (/^\d+$/.test(given.get("rank") ?? "")) state.rank = Number(given.get("rank"));
  if (given.get("tensor")) state.tensor = given.get("tensor");
  return state;
}

export function sameCase(a, b) {
  const text = (kase) =>
    JSON.stringify(
      Object.entries(kase)
        .filter(([, value]) => value !== undefined)
        .sort(),
    );
  return text(a) === text(b);
}
