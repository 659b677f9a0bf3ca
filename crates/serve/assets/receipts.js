// Receipts: what became of runs, promised beside measured; two compared, and a history's drift.

import { el, table, command, put } from "./dom.js";
import { ask, forget } from "./ask.js";
import { bytes, seconds, percent } from "./units.js";
import { findingsList } from "./findings.js";

const chosen = new Set();

export async function showReceipts(panel, context) {
  forget("receipts");
  const answer = await ask("receipts", {});
  if (answer.findings.some((finding) => finding.rule === "serve/receipts")) {
    put(
      panel,
      el("p", {}, "Receipts say what became of runs, with what was promised beside what was measured. To see them here:"),
      command("shardwright serve --receipts receipts"),
    );
    return;
  }
  if (!answer.ok) return put(panel, el("h3", {}, "Receipts cannot be read"), findingsList(answer.findings));
  const all = answer.json.receipts;
  if (!all.length) {
    put(
      panel,
      el(
        "p",
        {},
        "No run has been recorded in this store yet. A launch’s own logs make a receipt, which stands here with what was promised beside what was measured:",
      ),
      command("shardwright receipt record launch"),
    );
    return;
  }
  const detail = el("div", { id: "receipt-detail", "aria-live": "polite" });
  put(panel, list(all, detail, context), detail);
}

function off(measured, promised) {
  if (!measured || !promised) return "";
  const share = measured / promised - 1;
  return `${share > 0 ? "+" : ""}${percent(share, 1)}`;
}

// Measured, with what was promised below it.
function beside(measured, promised, word) {
  const far = off(measured, promised);
  return [
    el("div", {}, `${word(measured)}${far ? ` (${far})` : ""}`),
    el("div", { class: "soft" }, `promised ${word(promised)}`),
  ];
}

function list(all, detail, { state }) {
  const right = (text) => ({ text, right: true });
  const buttons = el(
    "div",
    { class: "row" },
    el("button", { type: "button", id: "compare", onclick: () => compare(detail, all) }, "Compare the two I ticked"),
    el("button", { type: "button", id: "drift", onclick: () => drift(detail, all) }, "Drift of those I ticked"),
    el(
      "button",
      {
        type: "button",
        class: "small",
        onclick: () =>
          drift(
            detail,
            all,
            all.filter((one) => one.recipe === state.case.recipe),
          ),
      },
      `Drift of all of ${state.case.recipe}`,
    ),
  );
  const rows = all.map((one) => ({
    head: false,
    cells: [
      el("input", {
        type: "checkbox",
        "aria-label": `Tick ${one.id.slice(0, 12)}`,
        checked: chosen.has(one.id),
        onchange: (event) => (event.target.checked ? chosen.add(one.id) : chosen.delete(one.id)),
      }),
      el("button", { type: "button", class: "link", onclick: () => show(detail, one.id) }, one.id.slice(0, 12)),
      [el("div", {}, one.recipe), el("div", { class: "soft" }, one.topology)],
      [el("div", {}, one.state), el("div", { class: "soft" }, one.recorded.replace("T", " ").replace("Z", ""))],
      beside(one.step_seconds, one.promised_seconds, seconds),
      beside(one.allocated_peak, one.promised_allocated, bytes),
    ],
  }));
  const columns = ["", "receipt", "run", "ended", right("a step took"), right("allocated at most")];
  return el("div", {}, table("Receipts", columns, rows, { id: "receipt-list" }), buttons);
}

async function show(box, id) {
  const answer = await ask("receipt", { receipt: id });
  if (!answer.ok) return put(box, findingsList(answer.findings));
  const { outcome, receipt } = answer.json;
  const right = (text) => ({ text, right: true });
  const rows = [
    [
      "a step",
      seconds(outcome.promised_seconds),
      seconds(outcome.step_seconds),
      off(outcome.step_seconds, outcome.promised_seconds),
      "",
    ],
  ];
  for (const one of outcome.memory)
    rows.push([
      one.kind.replaceAll("-", " "),
      bytes(one.promised),
      bytes(one.measured),
      off(one.measured, one.promised),
      `rank ${one.rank}`,
    ]);
  put(
    box,
    el("h3", {}, `Receipt ${id.slice(0, 12)}: ${receipt.identity.recipe}`),
    el(
      "p",
      {},
      `${outcome.state}; ${outcome.steps} steps, ${outcome.attempts} attempts.`,
      outcome.first_loss
        ? ` Loss ${outcome.first_loss[1]} at step ${outcome.first_loss[0]}, ${outcome.last_loss[1]} at step ${outcome.last_loss[0]}.`
        : "",
    ),
    table("Promised and measured", ["", right("promised"), right("measured"), right("off by"), "where"], rows),
    el(
      "p",
      { class: "soft" },
      "Read from ",
      receipt.evidence.sources.map((source) => `${source.path} (${source.format})`).join(", "),
      ".",
    ),
  );
}

function ticked(all) {
  return all.filter((one) => chosen.has(one.id)).map((one) => one.id);
}

function changes(list) {
  const rows = list.map((one) => [one.key, one.layer, one.part, String(one.old), String(one.new)]);
  return rows.length
    ? table("What differs", ["key", "layer", "part", "old", "new"], rows)
    : el("p", {}, "Nothing that we know of differs between them.");
}

async function compare(box, all) {
  const two = ticked(all);
  if (two.length !== 2) return put(box, el("p", {}, "Tick two receipts to compare."));
  const { json, findings } = await ask("compare", { receipts: two });
  if (!json?.changes) return put(box, findingsList(findings));
  const right = (text) => ({ text, right: true });
  const rows = [];
  if (json.speed)
    rows.push([
      "step",
      seconds(json.speed.old.median),
      seconds(json.speed.new.median),
      json.speed.change === null ? "" : percent(json.speed.change, 1),
    ]);
  for (const one of json.memory ?? [])
    rows.push([
      `${one.kind.replaceAll("-", " ")}, ${one.class}`,
      bytes(one.old),
      bytes(one.new),
      bytes(one.new - one.old),
    ]);
  for (const one of json.lines ?? [])
    rows.push([`promised ${one.line}, ${one.class}`, bytes(one.old), bytes(one.new), bytes(one.new - one.old)]);
  const refused = Object.entries(json.refused ?? {}).flatMap(([what, reasons]) =>
    reasons.map((reason) => `${what}: ${reason}`),
  );
  put(
    box,
    el("h3", {}, `${two[0].slice(0, 12)} against ${two[1].slice(0, 12)}`),
    changes(json.changes),
    refused.length ? el("p", {}, "Not comparable in ", refused.join("; "), ".") : "",
    table("Compared", ["", right("old"), right("new"), right("change")], rows),
  );
}

async function drift(box, all, of) {
  const ids = of ? of.map((one) => one.id) : ticked(all);
  if (ids.length < 2) return put(box, el("p", {}, "A drift needs two receipts or more."));
  const { json, findings } = await ask("drift", { receipts: ids });
  if (!json?.turns) return put(box, findingsList(findings));
  const turn = (one) =>
    el(
      "div",
      {},
      el("h4", {}, `Run ${one.at + 1}, ${one.recorded?.replace("T", " ").replace("Z", "") ?? ""}`),
      one.figure ? el("p", {}, String(one.figure)) : "",
      changes(one.changes ?? []),
    );
  put(
    box,
    el("h3", {}, `Drift over ${json.runs} runs`),
    json.turns.length ? el("div", {}, json.turns.map(turn)) : el("p", {}, "No figure left its noise."),
    json.quiet?.length ? el("div", {}, el("p", {}, "Changed, and no figure moved:"), json.quiet.map(turn)) : "",
  );
}
