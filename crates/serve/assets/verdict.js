// The answer in sentences: does it fit, which ranks are worst and why, how long a step takes, what to change, what to
// run.

import { el, sentence, command, save, put } from "./dom.js";
import { bytes, seconds, exact, quoted, ranges, slower } from "./units.js";
import { findingsList } from "./findings.js";
import { parseFlags, words } from "./state.js";

const WORDS = { fits: "Fits", tight: "Fits, but tight", "does-not-fit": "Does not fit" };

// Keys that a button may set: what a finding would change that is no key of a case stays a sentence.
const KEYS = ["tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs", "gbs", "microbatches", "seq", "zero"];

export function showVerdict(box, state, answer, act, choices) {
  const parts = answer.json?.verdict ? priced(state, answer, act, choices) : refused(answer, act, choices);
  put(box, ...parts.filter(Boolean));
  box.dataset.verdict = answer.json?.verdict ?? "refused";
}

function refused(answer, act, choices) {
  const errors = answer.findings.filter((finding) => finding.severity === "error");
  const isText = errors.some((finding) => finding.line);
  const head = isText ? "The model's text cannot be read" : "This layout is refused";
  return [
    el("h2", { class: "no" }, head),
    el("p", {}, errors.length > 1 ? `${errors.length} reasons:` : "Because:"),
    findingsList(errors.length ? errors : answer.findings, mender(act, choices)),
    isText ? el("p", {}, el("button", { type: "button", onclick: () => act.tab("model") }, "Look at the text")) : null,
  ];
}

// Values that a button may set: keys of a case, and of them what no other rule refuses, where that is known.
function mender(act, choices) {
  if (act.fixed) return undefined;
  const offers = ({ key, values }) => {
    if (!KEYS.includes(key)) return [];
    const axis = choices?.axes?.find((axis) => axis.axis === key);
    const legal = axis?.values.filter((choice) => choice.legal).map((choice) => String(choice.value)) ?? [];
    const sound = values.filter((value) => legal.includes(String(value)));
    return axis ? sound : values;
  };
  return { offers, set: (key, value) => act.change({ [key]: value }) };
}

function priced(state, { json: fit }, act, choices) {
  const worst = fit.rank_classes[fit.worst];
  const device = fit.device_bytes ?? fit.hardware.device.memory_bytes;
  const total = fit.hardware.nodes * fit.hardware.devices_per_node;
  const isGood = fit.verdict === "fits";
  const over = worst.headroom_bytes < 0;
  const asked = fit.headroom_bytes;
  return [
    el(
      "h2",
      { class: isGood ? "yes" : fit.verdict === "tight" ? "tight" : "no" },
      `${WORDS[fit.verdict]} on ${total} × ${fit.hardware.device.name}`,
    ),
    el(
      "p",
      {},
      "The worst ranks are ",
      el("strong", {}, `stage ${worst.stage}’s (${rankRange(worst)})`),
      `: ${bytes(worst.total_bytes)} of ${bytes(device)}, `,
      el("strong", {}, over ? `${bytes(-worst.headroom_bytes)} over` : `${bytes(worst.headroom_bytes)} left`),
      asked === undefined ? "" : ` (${bytes(asked)} asked for)`,
      `. The peak stands in ${worst.peak_block} during ${worst.peak_phase}; most of it is ${largest(worst)}.`,
    ),
    stepSentence(fit.step, fit.layout),
    changeSentence(state, fit, act),
    runSentence(state, fit, act),
    notes(fit, act, choices),
  ];
}

export function rankRange({ ranks }) {
  return ranks.count === 1 ? `rank ${ranks.first}` : `ranks ${ranges([ranks.first])}–${ranks.first + ranks.count - 1}`;
}

function largest(worst) {
  const lines = [...worst.lines].sort((a, b) => b.bytes - a.bytes).slice(0, 3);
  return lines.map((line) => `${line.line} ${bytes(line.bytes)}`).join(", ");
}

export function stepSentence(step, layout) {
  if (!step) return el("p", { class: "soft" }, "How long a step takes is not known for this case.");
  const { low, high, share } = step.interval ?? {};
  const trust = step.interval
    ? ` (${seconds(low)} to ${seconds(high)} in ${Math.round(share * 10)} of 10 such runs)`
    : "";
  return el(
    "p",
    {},
    layout ? `A step of ${exact(layout.gbs)} ${layout.gbs === 1 ? "sequence" : "sequences"} takes ` : "A step takes ",
    el("strong", {}, seconds(step.seconds)),
    `${trust}: ${exact(step.tokens_per_second_per_device)} tokens/s a device. It is bound by ${step.bound}.`,
  );
}

// One change at a time, those first that make it fit.
function changeSentence(state, fit, act) {
  const levers = fit.levers ?? [];
  const asked = fit.headroom_bytes ?? 4 * 2 ** 30;
  const enough = levers.filter((lever) => lever.headroom_bytes >= asked);
  if (act.fixed && fit.verdict === "fits") return null;
  if (fit.verdict === "fits") {
    return el(
      "p",
      {},
      "Nothing has to change. ",
      el("button", { type: "button", onclick: () => act.search() }, "Search for a faster layout"),
    );
  }
  const offered = (enough.length ? enough : levers).slice(0, 4);
  const lead = enough.length
    ? `To change: any of these ${fit.verdict === "tight" ? `leaves the ${bytes(asked)} asked for` : "makes it fit"}, the fastest first. `
    : levers.length
      ? "To change: no single change makes it fit; these help most. "
      : fit.levers
        ? "To change: search for a layout that fits. "
        : "To change: looking for single changes that help… ";
  return el(
    "p",
    {},
    lead,
    offered.map((lever) => [leverButton(lever, act), " "]),
    act.fixed ? null : el("button", { type: "button", onclick: () => act.search() }, "Search for a layout"),
  );
}

function leverButton(lever, act) {
  const time = { unknown: "", same: ", same time" }[slower(lever.slows)] ?? `, ${slower(lever.slows)} time`;
  const text = `${lever.change} (saves ${bytes(lever.saves_bytes)}${time})`;
  if (act.fixed) return el("code", {}, text);
  return el(
    "button",
    { type: "button", title: `costs ${lever.costs}`, onclick: () => act.change(parseFlags(lever.change)) },
    text,
  );
}

function runSentence(state, fit, act) {
  const [file, ...flags] = words(state.case);
  const line = `shardwright launch ${[file, ...flags].map(quoted).join(" ")} --out launch`;
  const over = fit.verdict === "does-not-fit";
  const see =
    over || act.fixed
      ? null
      : el("button", { type: "button", onclick: () => act.tab("launch") }, "See the launch files");
  const keep = el(
    "button",
    { type: "button", onclick: () => save(file, state.case.text, "text/plain") },
    `Save ${file}`,
  );
  return el(
    "div",
    { class: "run" },
    el("p", {}, over ? "To run, once it fits: " : "To run: ", see, state.case.text === undefined ? null : [" ", keep]),
    command(line),
  );
}

function notes(fit, act, choices) {
  const findings = fit.findings ?? [];
  const given = (fit.seams ?? []).filter((seam) => seam.gives_up);
  if (findings.length + given.length === 0) return null;
  const count = findings.length + given.length;
  return el(
    "details",
    {},
    el("summary", {}, `${count} ${count === 1 ? "thing" : "things"} worth knowing`),
    findings.length ? findingsList(findings, mender(act, choices)) : null,
    given.length
      ? el(
          "ul",
          { class: "findings" },
          given.map((seam) =>
            el(
              "li",
              { class: "finding note" },
              el("span", { class: "badge" }, "given up"),
              " ",
              sentence(seam.wanted),
              "; what runs: ",
              sentence(seam.runs),
              " ",
              el("code", { class: "rule" }, seam.name),
            ),
          ),
        )
      : null,
  );
}
