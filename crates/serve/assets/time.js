// Time: the simulated step as a chart of stages, and what the step consists of.

import { el, table, put } from "./dom.js";
import { body } from "./state.js";
import { bytes, seconds, percent, exact } from "./units.js";
import { showPicture } from "./picture.js";
import { stepSentence } from "./verdict.js";

export function showTime(panel, { state, fit }) {
  if (!panel.firstChild) {
    panel.append(
      el("div", { id: "time-words" }),
      el("div", { class: "picture", id: "schedule-picture" }),
      el("div", { id: "time-parts" }),
    );
  }
  if (!fit) return;
  put(panel.querySelector("#time-words"), stepSentence(fit.step, fit.layout));
  if (!fit.step) return;
  showPicture(panel.querySelector("#schedule-picture"), "schedule", body(state.case, "schedule"), {
    label: "The step, stage by stage",
    zoom: true,
  });
  put(panel.querySelector("#time-parts"), ...parts(fit.step), ...traffic(fit.step), ...about(fit));
}

function parts(step) {
  const most = Math.max(...step.parts.map((part) => part.share));
  const rows = [...step.parts]
    .sort((a, b) => b.seconds - a.seconds)
    .map((part) => [part.name, seconds(part.seconds), bar(part, most), part.what, part.basis]);
  return [
    el("h3", {}, "The step’s parts, on the stage that bounds it"),
    table("Parts of the step", ["part", { text: "time", right: true }, "share", "what it is", "basis"], rows),
  ];
}

function bar(part, most) {
  const meter = el("span", { class: `bar ${part.kind}` });
  meter.style.width = `${Math.max(1, (part.share / most) * 100)}%`;
  return el(
    "span",
    { class: "share" },
    el("span", { class: "track", "aria-hidden": "true" }, meter),
    percent(part.share, 1),
  );
}

function leaves({ crosses_island, rails }) {
  if (!crosses_island) return "no";
  if (!rails) return "yes";
  if (rails.share === 0) return "yes, on its rails";
  return `yes, ${percent(rails.share)} ${rails.by === "relay" ? "relayed" : "over the spine"}`;
}

function traffic(step) {
  if (!step.traffic?.length) return [];
  const right = (text) => ({ text, right: true });
  const rows = step.traffic.map((one) => [
    one.axis,
    bytes(one.bytes),
    one.algorithm,
    `${one.spread.members}, ${one.spread.per_island} to an island`,
    leaves(one),
    seconds(one.exposed),
    seconds(one.hidden),
  ]);
  return [
    el("h3", {}, "What a rank sends in a step"),
    table(
      "Traffic",
      ["axis", right("bytes"), "algorithm", "members", "leaves the island", right("seen"), right("hidden")],
      rows,
    ),
  ];
}

function about(fit) {
  const { step, header } = fit;
  const trust = step.interval
    ? ` The interval is from ${step.interval.rows} published runs (${step.interval.class}).`
    : "";
  return [
    el(
      "p",
      { class: "soft" },
      `${exact(step.tflops_per_device)} TFLOP/s a device, MFU ${percent(step.mfu, 1)} (${step.convention}), bubble ${percent(step.bubble, 1)}.${trust} `,
      `Lane ${header.lane}: ${header.compile}, ${header.precision}, ${header.overlap.join(", ") || "nothing"} overlapped, ${header.wrapper}, ${header.optimizer}.`,
    ),
  ];
}
