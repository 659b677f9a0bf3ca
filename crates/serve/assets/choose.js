// Choose: a search over layouts that can be stopped; its frontier, whose points become the case; why others lost.

import { el, table, sentence, folded, command, put } from "./dom.js";
import { ask, progress, stop } from "./ask.js";
import { LAYOUT, body, fromFlags, words } from "./state.js";
import { bytes, seconds, exact, percent, quoted } from "./units.js";
import { showPicture } from "./picture.js";
import { findingsList } from "./findings.js";
import { asksRun, run, runFields } from "./budget.js";

// What a search is free to choose, unless it is told to keep what was set.
const DEGREES = LAYOUT.filter((key) => !["gbs", "seq", "engine", "vocab_multiple"].includes(key));

let keep = false;
let running = null;

function asked(state) {
  const free = { ...state.case };
  if (!keep) for (const key of DEGREES) delete free[key];
  return body(free, "plan", asksRun(state.case));
}

export async function showChoose(panel, context) {
  const { state, act } = context;
  if (!panel.firstChild)
    panel.append(el("div", { id: "search-form" }), el("div", { id: "search-answer", "aria-live": "polite" }));
  const question = asked(state);
  const key = JSON.stringify(question);
  const found = act.found.get(key);
  if (!running) put(panel.querySelector("#search-form"), act.fixed ? "" : form(panel, context));
  const box = panel.querySelector("#search-answer");
  if (act.fixed && !found) {
    const kept = { question, answer: await ask("plan", {}) };
    act.found.set(key, kept);
    return showAnswer(box, kept, context);
  }
  if (found) showAnswer(box, found, context);
  else if (!running)
    put(
      box,
      el(
        "p",
        { class: "soft" },
        "A search tries every legal layout of this model on this cluster: thousands to millions, most of them ruled out by bounds.",
      ),
    );
}

function form(panel, context) {
  const box = el("input", {
    type: "checkbox",
    id: "keep",
    checked: keep,
    onchange: () => {
      keep = box.checked;
      showChoose(panel, context);
    },
  });
  const row = el(
    "div",
    { class: "row" },
    el("button", { type: "button", class: "primary", id: "search", onclick: () => search(panel, context) }, "Search"),
    el("label", { class: "switch", for: "keep" }, box, "keep the degrees I set"),
  );
  return [runFields(context), row];
}

// Searches, unless that is known or under way.
export function startSearch(panel, context) {
  const isKnown = context.act.found.has(JSON.stringify(asked(context.state)));
  if (!running && !isKnown) search(panel, context);
}

async function search(panel, context) {
  const { state, act } = context;
  const question = asked(state);
  const job = `page-${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
  const aborter = new AbortController();
  const bar = el("progress", { "aria-label": "How far the search is" });
  const said = el("span", { class: "soft" }, "waiting for its turn");
  const cancel = el(
    "button",
    {
      type: "button",
      id: "cancel",
      onclick: async () => {
        clearInterval(watch);
        await stop(job);
        aborter.abort();
      },
    },
    "Cancel",
  );
  put(panel.querySelector("#search-form"), el("div", { class: "row" }, bar, said, cancel));
  cancel.focus();
  running = job;
  const watch = setInterval(async () => {
    const at = await progress(job);
    if (!at) return;
    if (at.of > 0) {
      bar.max = at.of;
      bar.value = at.done;
    }
    said.textContent =
      at.state === "waiting"
        ? "waiting for its turn"
        : `${at.of ? `${exact(at.done)} of ${exact(at.of)}` : "counting"}, ${Math.round(at.seconds)} s`;
  }, 400);
  const answer = await ask("plan", question, { signal: aborter.signal, job });
  clearInterval(watch);
  running = null;
  if (!answer.stopped) act.found.set(JSON.stringify(question), { question, answer });
  act.again();
  if (answer.stopped) put(panel.querySelector("#search-answer"), el("p", {}, "The search was cancelled."));
  panel.querySelector("#search")?.focus();
}

function showAnswer(box, found, context) {
  const { question, answer } = found;
  const plan = answer.json;
  // A layout that is picked is a case of the same search: it stays in sight.
  context = { ...context, taken: (kase) => context.act.found.set(JSON.stringify(asked({ case: kase })), found) };
  if (!plan?.best) {
    put(
      box,
      el("h3", {}, "No layout does"),
      findingsList(answer.findings),
      ...(plan?.rejected ? lost(plan, context) : []),
    );
    return;
  }
  const picture = el("div", { class: "picture", id: "frontier-picture" });
  put(
    box,
    ...best(plan, context),
    ...run(plan, context.state.case),
    picture,
    ...frontier(plan, context),
    ...near(plan, context),
    ...lost(plan, context),
  );
  const pick = (data) => take(context, flagsOf(plan, data));
  pick.accepts = (data) => flagsOf(plan, data) !== null && !context.act.fixed;
  showPicture(picture, "frontier", question, { label: "Time against headroom", pick });
}

// A point names its layout by flags, or by its place on the frontier.
function flagsOf(plan, data) {
  if (data.case === undefined) return null;
  if (data.case.includes("--")) return data.case;
  if (data.case === "best") return plan.best.layout.flags;
  return plan.frontier[Number(data.case)]?.layout.flags ?? null;
}

function take({ state, act, taken }, flags) {
  if (!flags) return;
  const kase = fromFlags(state.case, flags);
  taken(kase);
  act.replace(kase);
}

function takeButton(context, flags, label) {
  if (context.act.fixed) return el("code", {}, label);
  return el("button", { type: "button", class: "small take", onclick: () => take(context, flags) }, label);
}

function best(plan, context) {
  const { best } = plan;
  const job = fromFlags(context.state.case, best.layout.flags);
  const line = `shardwright launch ${words(job).map(quoted).join(" ")} --out launch`;
  return [
    el("h3", {}, `Best for ${plan.engine}: `, el("code", {}, best.layout.flags)),
    el(
      "p",
      {},
      `A step of ${exact(best.layout.gbs)} sequences takes ${seconds(best.step.seconds)}`,
      best.step.interval
        ? ` (${seconds(best.step.interval.low)} to ${seconds(best.step.interval.high)} in ${Math.round(best.step.interval.share * 10)} of 10 such runs)`
        : "",
      `: ${exact(best.step.tokens_per_second_per_device)} tokens/s a device, ${bytes(best.headroom_bytes)} left. Bound by ${best.step.bound}. `,
      plan.gbs_assumed ? "The batch is assumed: set “Sequences a step” to say another. " : "",
      takeButton(context, best.layout.flags, "Make it the case"),
    ),
    command(line),
  ];
}

function frontier(plan, context) {
  const right = (text) => ({ text, right: true });
  const rows = plan.frontier.map((point) => ({
    head: false,
    cells: [
      takeButton(context, point.layout.flags, short(point.layout)),
      seconds(point.seconds),
      exact(point.tokens_per_second_per_device),
      bytes(point.headroom_bytes),
    ],
  }));
  return [
    el(
      "p",
      { class: "soft" },
      "A point of the picture, or a line below, is a layout: pick one and it becomes the case. What is left of memory is the search’s own sum, a few GiB off at most, but for the chosen one, which was replayed; picking a point replays it.",
    ),
    folded(
      `The frontier as a table (${plan.frontier.length})`,
      () => table("Frontier", ["layout", right("step"), right("tokens/s a device"), right("left")], rows),
      { id: "frontier-table" },
    ),
  ];
}

function short(layout) {
  const keys = ["tp", "cp", "pp", "vpp", "ep", "etp", "zero", "mbs"].filter(
    (key) => String(layout[key]) !== "1" || key === "tp",
  );
  const recompute = layout.recompute === "none" ? "" : `, recompute ${layout.recompute}`;
  return `${keys.map((key) => `${key} ${layout[key]}`).join(", ")}${recompute}${layout.mode ? `, ${layout.mode}` : ""}`;
}

function near(plan, context) {
  const right = (text) => ({ text, right: true });
  const rows = plan.alternatives.map((other) => ({
    head: false,
    cells: [
      takeButton(context, other.flags, other.change),
      seconds(other.seconds),
      `${other.slower > 0 ? "+" : ""}${percent(other.slower, 1)}`,
      bytes(other.headroom_bytes),
    ],
  }));
  if (!rows.length) return [];
  return [
    el("h3", {}, "One change away"),
    table("One change away", ["instead", right("step"), right("slower"), right("left")], rows),
  ];
}

const FATES = {
  "slower-by-bound": "A bound shows that it cannot be as fast as a layout that was found: it was not priced further.",
  dominated: "It fits; another layout is faster and leaves more free.",
};

// Every count opens: what it means, and an example of the rule.
function lost(plan, context) {
  const { stats, rejected } = plan;
  const groups = [
    ["Illegal", (name) => !(name in FATES) && !name.startsWith("memory/")],
    ["Too large", (name) => name.startsWith("memory/")],
    ["Legal, and slower", (name) => name in FATES],
  ];
  return [
    el("h3", {}, "Why the others lost"),
    stats
      ? el(
          "p",
          {},
          `${exact(stats.enumerated)} layouts, ${exact(stats.legal)} of them legal, ${exact(stats.priced)} priced, ${exact(stats.fit)} fit, ${exact(stats.simulated)} simulated. A layout that several rules refuse counts under each.`,
        )
      : "",
    groups
      .map(([title, belongs]) => {
        const found = Object.entries(rejected)
          .filter(([name]) => belongs(name))
          .sort((a, b) => b[1] - a[1]);
        if (!found.length) return "";
        return el(
          "div",
          { class: "lost" },
          el("h4", {}, title),
          found.map(([name, number]) =>
            folded(el("span", {}, el("code", {}, name), ` ${exact(number)}`), () => why(name, plan, context)),
          ),
        );
      })
      .flat(),
  ];
}

function why(name, plan, context) {
  if (name in FATES) return el("p", {}, FATES[name]);
  if (name.startsWith("memory/")) {
    return el(
      "p",
      {},
      "On the worst rank the device was full, and ",
      el("code", {}, name.slice(7)),
      " was the largest line there. The memory tab of a layout says what that line scales with.",
    );
  }
  const box = el("div", {}, el("p", { class: "soft" }, "Looking for an example…"));
  example(name, context).then((found) => {
    if (!found)
      return put(
        box,
        el("p", {}, "A rule of the layout or of its engine refuses these; no simple change of this case meets it."),
      );
    put(
      box,
      el(
        "p",
        {},
        "For instance ",
        el("code", {}, found.flags),
        ": ",
        sentence(found.finding.message),
        ". ",
        found.finding.hint ? el("span", { class: "soft" }, sentence(found.finding.hint)) : "",
      ),
    );
  });
  return box;
}

// Small changes of the case until one meets the rule. Its family says which axes to try first.
async function example(rule, { state, choices }) {
  for (const axis of choices?.axes ?? []) {
    for (const { value, findings } of axis.values) {
      const finding = findings.find((finding) => finding.rule === rule);
      if (finding) return { flags: `--${axis.axis} ${value}`, finding };
    }
  }
  const base = { ...state.case };
  for (const key of DEGREES) delete base[key];
  const tries = [];
  for (const value of [2, 4, 8, 3]) for (const key of ["tp", "cp", "pp", "ep", "etp"]) tries.push({ [key]: value });
  for (const [a, b] of [
    ["tp", "ep"],
    ["cp", "ep"],
    ["pp", "ep"],
    ["tp", "etp"],
    ["tp", "cp"],
    ["pp", "vpp"],
    ["tp", "pp"],
  ]) {
    for (const value of [2, 4, 8]) tries.push({ [a]: value, [b]: 2 }, { [a]: 2, [b]: value });
  }
  for (const schedule of ["gpipe", "interleaved", "zb-h1", "dualpipe", "dualpipev"]) tries.push({ pp: 2, schedule });
  const first = rule.split("/")[0];
  tries.sort((a, b) => Number(first in b) - Number(first in a));
  for (const change of tries) {
    const answer = await ask("check", body({ ...base, engine: state.case.engine ?? "megatron", ...change }, "check"));
    const finding = answer.findings.find((finding) => finding.rule === rule && finding.severity === "error");
    if (finding)
      return {
        flags: Object.entries(change)
          .map(([key, value]) => `--${key} ${value}`)
          .join(" "),
        finding,
      };
  }
  return null;
}
