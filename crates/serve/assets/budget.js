// A whole run: tokens, days and a price beside a search; days, device-hours, cost, goodput and checkpoints from its answer.

import { el, table } from "./dom.js";
import { bytes, count, exact, percent } from "./units.js";

const FIELDS = [
  ["tokens", "Tokens of the run", "15T"],
  ["days", "Days it may take", "30"],
  ["price_per_device_hour", "Price of a device-hour", "2.5"],
];

// What is asked of a search besides, where a run is asked for; `top` keeps the frontier in the answer. Days that are
// allowed change nothing in it: whether they are enough is seen here.
export function asksRun(kase) {
  if (!kase.tokens) return {};
  const out = { tokens: kase.tokens, top: 1 };
  if (kase.price_per_device_hour) out.price_per_device_hour = kase.price_per_device_hour;
  return out;
}

export function runFields({ state, act }) {
  return el(
    "div",
    { class: "fields", id: "run-fields" },
    FIELDS.map(([key, title, example]) => {
      const input = el("input", {
        type: "text",
        id: `run-${key}`,
        value: state.case[key] ?? "",
        placeholder: example,
        autocomplete: "off",
        spellcheck: "false",
        onchange: () => act.change({ [key]: input.value.trim() || undefined }),
      });
      return el("label", {}, el("span", {}, title), input);
    }),
  );
}

// What the run comes to.
export function run(plan, kase) {
  const { budget } = plan;
  if (!budget) return [];
  const { checkpoint, goodput, failures } = budget;
  const rows = [
    ["days", days(budget.days), `${days(budget.days_low)} to ${days(budget.days_high)} in 8 of 10 such runs`],
    ["steps", exact(budget.steps), budget.batches.length > 1 ? "the batch grows" : `of ${exact(budget.batches[0].gbs)} sequences`],
    ["device-hours", large(budget.device_hours), ""],
    ["MWh", large(budget.energy_mwh), budget.watts_per_device ? `${exact(budget.watts_per_device)} W a device at most` : "not stated"],
    ["cost", large(budget.cost), budget.price_per_device_hour ? `at ${budget.price_per_device_hour} a device-hour` : "no price given"],
    ["useful", percent(goodput.useful, 1), "of the time goes into steps that count"],
    ["checkpoint every", `${exact(checkpoint.every_steps)} steps`, `${length(checkpoint.every_seconds)}; ${bytes(checkpoint.bytes)}, steps wait ${length(checkpoint.stall_seconds)}`],
    ["interruption every", length(failures.between_seconds), `${length(failures.down_seconds)} down each${failures.is_borrowed ? "; H100’s rate, none of this device was published" : ""}`],
  ];
  const isLate = Number(kase.days) > 0 && (budget.days === null || budget.days > Number(kase.days));
  return [
    el("h3", {}, `A run of ${count(budget.tokens)} tokens`),
    isLate
      ? el("p", { id: "run-late" }, `It takes longer than the ${kase.days} days it may: a larger fleet, or fewer tokens.`)
      : "",
    table("The run", ["", { text: "comes to", right: true }, ""], rows, { id: "run-table" }),
  ];
}

function days(number) {
  if (number === null || number === undefined) return "no end";
  return number < 10 ? number.toFixed(2) : number < 1000 ? number.toFixed(1) : exact(number);
}

function large(number) {
  if (number === null || number === undefined) return "–";
  return number < 10 ? number.toFixed(2) : count(Math.round(number));
}

function length(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds < 172_800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86_400).toFixed(1)} days`;
}
