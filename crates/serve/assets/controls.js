// Controls of the layout: one an axis, with every value there is; those that are refused say which rule refuses them.

import { el, sentence, folded, put } from "./dom.js";
import { ask } from "./ask.js";

// What stands beside each control; an axis's own description comes with a tip.
const TITLES = {
  tp: "Tensor parallel",
  sp: "Sequence parallel",
  cp: "Context parallel",
  pp: "Pipeline stages",
  vpp: "Chunks a stage",
  ep: "Expert parallel",
  etp: "Tensor parallel in experts",
  dp: "Data parallel",
  zero: "ZeRO",
  mbs: "Microbatch",
  engine: "what runs it",
  mode: "which of its blocks",
  recompute: "what backward computes again",
  precision: "of products",
  optimizer: "what steps the weights",
  schedule: "of the pipeline",
  balance: "how layers are dealt out",
  gradients: "accumulated in",
  microbatches: "Microbatches a step",
};

// Controls that are always in sight; the rest stands behind "More".
const FIELDS = ["gbs", "seq"];
const FIRST = ["engine", "mode", "tp", "pp", "cp", "ep", "dp", "mbs"];

export function showControls(box, state, choices, layout, header, act) {
  const axes = choices?.axes ?? [];
  const isOpen = box.querySelector("details.more")?.open ?? false;
  // Experts have a width of their own only where there are experts.
  const isFirst = ({ axis, values }) => FIRST.includes(axis) || (axis === "etp" && values.length > 1);
  const first = axes
    .filter(isFirst)
    .sort((a, b) => FIRST.indexOf(beside(a)) - FIRST.indexOf(beside(b)));
  const rest = axes.filter((axis) => !isFirst(axis) && !FIELDS.includes(axis.axis));
  const derived = Object.fromEntries((layout?.derived ?? []).map((entry) => [entry.key, entry]));
  // What a recipe or an engine says of these stands in the job's header.
  for (const key of ["precision", "optimizer"]) if (header?.[key]) derived[key] = { why: `now ${header[key]}` };
  put(
    box,
    ...first.map((axis) => control(axis, state, layout, derived, act)),
    el(
      "div",
      { class: "fields" },
      numberField("gbs", "Sequences a step", state, layout, act),
      numberField("seq", "Tokens a sequence", state, layout, act),
    ),
    el(
      "details",
      { class: "more", open: isOpen },
      el("summary", {}, "More: schedule, recompute, precision, offload"),
      rest.map((axis) => control(axis, state, layout, derived, act)),
      el(
        "div",
        { class: "fields" },
        numberField("headroom", "Leave free (GiB or %)", state, { headroom: "4" }, act),
        numberField("offload_optimizer", "Optimizer on the host (0 to 1)", state, { offload_optimizer: "0" }, act),
        numberField(
          "offload_activations",
          "Activations on the host (0 to 1)",
          state,
          { offload_activations: "0" },
          act,
        ),
        numberField("boundaries", "First layers of chunks", state, layout, act),
      ),
      switches(state, act),
    ),
    engineOptions(state, axes.find((axis) => axis.axis === "engine")?.now, act),
    el("p", {}, el("button", { type: "button", class: "small", onclick: () => act.clear() }, "Back to defaults")),
  );
}

// `etp` stands with `ep`.
function beside({ axis }) {
  return axis === "etp" ? "ep" : axis;
}

// Buttons in a row, one of them chosen. Arrow keys walk over all of them, the refused ones too: these say why.
function control(axis, state, layout, derived, act) {
  const key = axis.axis.replaceAll("-", "_");
  const isSet = state.case[key] !== undefined;
  const now = String(axis.now);
  const id = `why-${key}`;
  const resting = derived[key] && !isSet ? `${derived[key].why}` : "";
  const why = el("p", { class: "why", id }, resting ? sentence(resting) : "");
  const buttons = axis.values.map((choice) => {
    const value = String(choice.value);
    const isNow = value === now;
    const refusal = choice.legal ? null : refusalText(choice);
    const may = mayChoose(choice);
    const button = el(
      "button",
      {
        type: "button",
        role: "radio",
        class: ["choice", isNow && "now", isNow && !isSet && "derived"].filter(Boolean).join(" "),
        "aria-checked": isNow ? "true" : "false",
        "aria-disabled": may ? undefined : "true",
        "aria-describedby": id,
        title: refusal ?? undefined,
        tabindex: "-1",
        "data-choice": `${key}=${value}`,
        onclick: () =>
          may && act.change({ [key]: (isNow && isSet) || choice.value === null ? undefined : choice.value }),
        onfocus: () => put(why, ...(refusal ? sentence(refusal) : resting ? sentence(resting) : [])),
        onpointerenter: () => refusal && put(why, ...sentence(refusal)),
        onpointerleave: () => put(why, ...(resting ? sentence(resting) : [])),
      },
      shown(choice.value),
    );
    if (refusal) why.classList.add("reserve");
    return button;
  });
  roving(buttons);
  return el(
    "fieldset",
    { class: "axis" },
    el("legend", {}, el("span", { class: "flag" }, key.replaceAll("_", "-")), " ", TITLES[key] ?? ""),
    el("div", { role: "radiogroup", "aria-label": TITLES[key] ?? key, class: "choices" }, buttons),
    why,
  );
}

// Where the case is refused as it stands, what makes it no worse may be chosen: one change may not mend it all.
function mayChoose(choice) {
  return choice.legal || choice.brings === 0;
}

function refusalText(choice) {
  const { message, rule, hint } = choice.findings[0];
  return `${shown(choice.value)}: ${message} [${rule}]${hint ? `; ${hint}` : ""}`;
}

function shown(value) {
  if (value === null) return "the recipe’s";
  if (value === true) return "on";
  if (value === false) return "off";
  return String(value).replaceAll("selective:", "").replaceAll("_", "\u00a0");
}

function roving(buttons) {
  const start = buttons.find((button) => button.getAttribute("aria-checked") === "true") ?? buttons[0];
  if (start) start.tabIndex = 0;
  const go = (to) => {
    buttons.forEach((button) => (button.tabIndex = -1));
    const button = buttons[(to + buttons.length) % buttons.length];
    button.tabIndex = 0;
    button.focus();
  };
  buttons.forEach((button, at) => {
    button.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" || event.key === "ArrowDown") go(at + 1);
      else if (event.key === "ArrowLeft" || event.key === "ArrowUp") go(at - 1);
      else return;
      event.preventDefault();
    });
  });
}

// A field that may stay empty: then what it comes to stands in it, pale.
function numberField(key, title, state, layout, act) {
  const value = state.case[key];
  const input = el("input", {
    type: "text",
    inputmode: key === "headroom" || key === "boundaries" || key === "seq" ? "text" : "decimal",
    value: value === undefined ? "" : Array.isArray(value) ? value.join(",") : String(value),
    placeholder: layout?.[key] === null || layout?.[key] === undefined ? "" : String(layout[key]),
    "data-choice": key,
    autocomplete: "off",
    spellcheck: "false",
    onchange: () => act.typed(key, input.value.trim()),
  });
  return el("label", {}, el("span", {}, title), input);
}

function switches(state, act) {
  const all = [
    ["ce_fusion", "Fuse the loss over the vocabulary"],
    ["fp8_param_gather", "Keep and gather weights in fp8"],
    ["offload_params", "Weights of ZeRO 3 on the host"],
  ];
  return all.map(([key, title]) =>
    el(
      "label",
      { class: "switch" },
      el("input", {
        type: "checkbox",
        checked: state.case[key] === true,
        "data-choice": key,
        onchange: (event) => act.change({ [key]: event.target.checked ? true : undefined }),
      }),
      title,
    ),
  );
}

let optionsOpen = false;

// Words of the engine's own; each becomes part of --engine-args.
function engineOptions(state, engine, act) {
  if (!engine || act.fixed) return null;
  const set = readArguments(state.case.engine_args ?? "");
  const count = Object.keys(set).length;
  const node = folded(
    `Options of ${engine}${count ? ` (${count} set)` : ""}`,
    () => {
      const inside = el("div", { class: "options" }, el("p", { class: "soft" }, "Asking…"));
      fillOptions(inside, engine, set, act);
      return inside;
    },
    { class: "engine-options", open: optionsOpen },
  );
  node.addEventListener("toggle", () => (optionsOpen = node.open));
  return node;
}

async function fillOptions(box, engine, set, act) {
  const answer = await ask("options", { engine });
  if (!answer.ok) return put(box, el("p", {}, "The engine’s options are not known here."));
  const change = (word, value) => {
    const next = { ...set };
    if (value === "") delete next[word];
    else next[word] = value;
    act.change({ engine_args: writeArguments(next) || undefined });
  };
  put(box, ...answer.json.options.map((option) => optionRow(option, set[option.word], change)));
}

function optionRow(option, value, change) {
  const label = `${option.word}: ${option.what}`;
  const auto = `as launched: ${option.launch_default || "unset"}`;
  const values = option.values ?? [];
  const control = values.length
    ? el(
        "select",
        {
          "aria-label": label,
          "data-choice": option.word,
          onchange: (event) => change(option.word, event.target.value),
        },
        el("option", { value: "" }, auto),
        values.map((v) => el("option", { value: v, selected: v === value }, v)),
      )
    : el("input", {
        type: "text",
        "aria-label": label,
        "data-choice": option.word,
        value: value ?? "",
        placeholder: auto,
        onchange: (event) => change(option.word, event.target.value.trim()),
      });
  return el(
    "div",
    { class: "option" },
    el("code", {}, option.word),
    control,
    el("p", { class: "soft" }, sentence(option.what)),
  );
}

// "--a b --no-c --d" as { "--a": "b", "--c": "false", "--d": "true" }.
function readArguments(text) {
  const out = {};
  const parts = text.split(/\s+/).filter(Boolean);
  parts.forEach((part, at) => {
    const next = parts[at + 1];
    const value = next !== undefined && !next.startsWith("--") ? next : null;
    if (part.includes("=") && !part.startsWith("--")) out[part.split("=")[0]] = part.split("=").slice(1).join("=");
    else if (part.startsWith("--no-") && value === null) out[`--${part.slice(5)}`] = "false";
    else if (part.startsWith("--")) out[part] = value ?? "true";
  });
  return out;
}

function writeArguments(set) {
  return Object.entries(set)
    .map(([word, value]) => {
      if (!word.startsWith("--")) return `${word}=${value}`;
      if (value === "true") return word;
      if (value === "false") return `--no-${word.slice(2)}`;
      return `${word} ${value}`;
    })
    .join(" ");
}
