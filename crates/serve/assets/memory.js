// Memory: bars of every stage, the phases through the peak, lines with what they rest on; a pinned case beside it.

import { el, table, folded, put } from "./dom.js";
import { body, parseFlags } from "./state.js";
import { bytes, change, exact, seconds, slower } from "./units.js";
import { showPicture } from "./picture.js";
import { rankRange } from "./verdict.js";

let stage = null;

export function showMemory(panel, context) {
  const { fit } = context;
  if (!panel.firstChild) {
    panel.append(
      el("div", { class: "picture", id: "memory-picture" }),
      el("div", { id: "memory-pinned", hidden: true }),
      el("div", { class: "picture", id: "phases-picture" }),
      el("div", { id: "memory-lines" }),
    );
  }
  if (!fit) return;
  draw(panel, context);
}

function draw(panel, context) {
  const { state, fit, act } = context;
  const asked = body(state.case, "fit", { levers: "no" });
  const known = fit.rank_classes.some((one) => one.stage === stage);
  const looked = known ? stage : fit.rank_classes[fit.worst].stage;
  const pick = ({ stage: picked }) => {
    stage = Number(picked);
    draw(panel, context);
  };
  pick.accepts = (data) => data.stage !== undefined;
  showPicture(panel.querySelector("#memory-picture"), "memory", known ? { ...asked, stage } : asked, {
    label: "Memory of every stage",
    pick,
  });
  showPicture(
    panel.querySelector("#phases-picture"),
    "phases",
    { ...asked, stage: looked },
    { label: `Phases of stage ${looked}` },
  );
  const one = fit.rank_classes.find((one) => one.stage === looked);
  put(panel.querySelector("#memory-lines"), ...lines(fit, one, context), ...levers(fit, act), ...unmodelled(fit));
  showDifference(panel.querySelector("#memory-pinned"), context, asked);
}

// The pinned case and this one, on the worst rank of each.
function showDifference(box, { state, fit, pinned }, asked) {
  const before = pinned?.json?.verdict ? pinned.json : null;
  box.hidden = !before;
  if (!before) return;
  const picture = box.querySelector(".picture") ?? el("div", { class: "picture", id: "difference-picture" });
  put(
    box,
    el("h3", {}, "Against the pinned case, on the worst rank of each"),
    layoutChange(before.layout, fit.layout),
    stepChange(before.step, fit.step),
    picture,
    folded("The difference as numbers", () => differenceTable(before, fit)),
  );
  const against = body(state.pin, "fit", { levers: "no" });
  showPicture(picture, "memory", { ...asked, against }, { label: "Lines of the pinned case and of this one" });
}

function stepChange(before, after) {
  if (!before || !after) return null;
  const [was, is] = [before, after].map((step) => step.tokens_per_second_per_device);
  return el(
    "p",
    {},
    `Step ${seconds(before.seconds)} → ${seconds(after.seconds)}; tokens/s a device ${exact(was)} → ${exact(is)}: time a token `,
    el("strong", {}, slower(was / is)),
    ".",
  );
}

function basis(value) {
  if (typeof value === "string") return value;
  const [word, source] = Object.entries(value ?? {})[0] ?? ["", ""];
  return !source ? word : source.startsWith(word) ? source : `${word}: ${source}`;
}

function lines(fit, one) {
  const rows = one.lines.filter((line) => line.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  const columns = ["line", { text: "bytes", right: true }, "scales with", "does not care about", "basis"];
  return [
    el("h3", {}, `Lines at the peak of stage ${one.stage} (${rankRange(one)})`),
    fit.rank_classes.length > 1 ? el("p", { class: "soft" }, "Pick a bar above to look at another stage.") : null,
    table(
      "Lines at the peak",
      columns,
      rows.map((line) => [line.line, bytes(line.bytes), line.scales_with, line.ignores, basis(line.basis)]),
    ),
  ].filter(Boolean);
}

function levers(fit, act) {
  if (!fit.levers?.length) return [];
  const rows = fit.levers.map((lever) => [
    act.fixed
      ? el("code", {}, lever.change)
      : el(
          "button",
          { type: "button", class: "small", onclick: () => act.change(parseFlags(lever.change)) },
          lever.change,
        ),
    bytes(lever.saves_bytes),
    bytes(lever.headroom_bytes),
    slower(lever.slows),
    lever.costs,
  ]);
  const right = (text) => ({ text, right: true });
  return [
    el("h3", {}, "One change each, on the worst rank"),
    table("Levers", ["change", right("saves"), right("left then"), right("time a token"), "costs"], rows),
  ];
}

function unmodelled(fit) {
  return [
    el("h3", {}, "Not in any number above"),
    el(
      "ul",
      {},
      (fit.unmodelled ?? []).map((text) => el("li", {}, text)),
    ),
  ];
}

function differenceTable(before, after) {
  const [old, now] = [before, after].map((fit) => fit.rank_classes[fit.worst]);
  const held = (one) => Object.fromEntries(one.lines.map((line) => [line.line, line.bytes]));
  const [a, b] = [held(old), held(now)];
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const rows = names
    .map((name) => [name, a[name] ?? 0, b[name] ?? 0])
    .filter(([, was, is]) => was !== is)
    .sort((x, y) => Math.abs(y[2] - y[1]) - Math.abs(x[2] - x[1]))
    .map(([name, was, is]) => [name, bytes(was), bytes(is), mark(is - was)]);
  rows.push({
    cells: ["all", bytes(old.total_bytes), bytes(now.total_bytes), mark(now.total_bytes - old.total_bytes)],
    attributes: { class: "sum" },
  });
  const right = (text) => ({ text, right: true });
  const columns = ["line", right("pinned"), right("now"), right("change")];
  return table("Difference to the pinned case", columns, rows, { id: "difference" });
}

function mark(number) {
  return el("span", { class: number > 0 ? "more-bytes" : number < 0 ? "less-bytes" : undefined }, change(number));
}

const COMPARED = [
  "world",
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
  "microbatches",
  "gbs",
  "seq",
  "schedule",
  "recompute",
  "mode",
  "engine",
];

export function layoutChange(before, after) {
  const changed = COMPARED.filter((key) => String(before[key]) !== String(after[key]));
  if (!changed.length) return el("p", { class: "soft" }, "The layouts are the same.");
  return el(
    "p",
    {},
    changed.map((key, at) => [at ? ", " : "", el("code", {}, `${key} ${before[key]} → ${after[key]}`)]),
  );
}
