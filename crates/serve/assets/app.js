// The page: one case, its answer, and what is looked at closely. No framework and no build step: these files are served
// as they stand, and a report holds them in one script.
//
// So that they can stand in one script: imports are one line each and rename nothing, exports are declarations.

import { el, put, redraw } from "./dom.js";
import { ask, canAsk, report } from "./ask.js";
import { TABS, body, fromAddress, toAddress, sameCase, parseFlags, words } from "./state.js";
import { quoted } from "./units.js";
import { showVerdict } from "./verdict.js";
import { showControls } from "./controls.js";
import { showSource, showCluster, watchDrops } from "./source.js";
import { showModel, openEditor } from "./model.js";
import { showMemory } from "./memory.js";
import { showOwnership } from "./ownership.js";
import { showTime } from "./time.js";
import { showChoose, startSearch } from "./choose.js";
import { showLaunch } from "./launch.js";
import { showReceipts } from "./receipts.js";
import { hideTip } from "./picture.js";
import { watchTheme } from "./theme.js";

const TITLES_OF_TABS = {
  model: "Model",
  memory: "Memory",
  ownership: "Ownership",
  time: "Time",
  choose: "Choose",
  launch: "Launch",
  receipts: "Receipts",
};
const SHOWS = {
  model: showModel,
  memory: showMemory,
  ownership: showOwnership,
  time: showTime,
  choose: showChoose,
  launch: showLaunch,
  receipts: showReceipts,
};

// What each tab cannot do without: a report may not hold it.
const NEEDS = {
  model: "params",
  memory: "fit",
  ownership: "splits",
  time: "fit",
  choose: "plan",
  launch: "launch",
  receipts: "receipts",
};
const tabs = TABS.filter((tab) => canAsk(NEEDS[tab]));

const fixed = report() !== null;
const LEVERS_WAIT = 300;
const byId = (id) => document.getElementById(id);
const lists = { recipes: [], devices: [], networks: [] };
let state = null;
let listed = null;
let turn = 0;
let waiting = new AbortController();
let last = { fit: null, choices: null, pinned: null };

// What parts of the page may do to the case.
const act = {
  fixed,
  found: new Map(),
  // Some keys of the case; undefined takes one back to what it comes to by itself.
  change: (keys) => go({ case: tidy({ ...state.case, ...keys }) }),
  replace: (kase) => go({ case: tidy(kase) }),
  clear: () => go({ case: tidy({ recipe: state.case.recipe, text: state.case.text, on: state.case.on }) }),
  // Another model: degrees of the last one mean nothing for it.
  start: (source) => go({ case: { ...source, on: state.case.on }, tensor: undefined, rank: undefined }),
  edited: (source) =>
    go(
      { case: tidy({ ...state.case, with: undefined, without: undefined, mode: undefined, ...source }) },
      { replaces: true },
    ),
  typed: (key, text) =>
    act.change({
      [key]: text === "" ? undefined : (parseFlags(`--${key.replaceAll("_", "-")} ${quoted(text)}`)[key] ?? undefined),
    }),
  tab: (tab) => go({ tab }).then(() => byId(`tab-${tab}`).focus()),
  search: () => act.tab("choose").then(() => startSearch(byId("panel-choose"), context())),
  look: (more) => go(more),
  edit: () => go({ tab: "model" }).then(openEditor),
  again: () => show(),
  say: (text) => byId("verdict").prepend(el("p", { class: "said" }, text)),
};

function tidy(kase) {
  return Object.fromEntries(Object.entries(kase).filter(([, value]) => value !== undefined));
}

// Another state: the address first, so that going back comes here.
async function go(more, { replaces = false } = {}) {
  const mine = (state = { ...state, ...more });
  const { address, tooLong } = await toAddress(mine);
  if (mine !== state) return;
  byId("copy-link").disabled = Boolean(tooLong);
  byId("copy-link").title = tooLong
    ? "This model’s text is too long for a link: send the file, and the link of a built-in model"
    : "";
  if (address && !fixed && address !== location.hash)
    history[replaces ? "replaceState" : "pushState"](null, "", address);
  await refresh();
}

async function refresh() {
  const mine = (turn += 1);
  waiting.abort();
  waiting = new AbortController();
  const { signal } = waiting;
  const busy = setTimeout(() => byId("verdict").setAttribute("aria-busy", "true"), 150);
  const [fit, choices, pinned] = await Promise.all([
    ask("fit", body(state.case, "fit", { levers: "no" }), { signal }),
    fixed ? null : ask("choices", body(state.case, "choices"), { signal }),
    state.pin ? ask("fit", body(state.pin, "fit", { levers: "no" }), { signal }) : null,
    listed,
  ]);
  clearTimeout(busy);
  if (mine !== turn) return;
  byId("verdict").removeAttribute("aria-busy");
  last = { fit, choices, pinned };
  show();
  // Whoever drives the page waits for the answer to the address.
  byId("answer").dataset.shown = location.hash;
  addLevers(mine, fit);
}

// What one change would save takes as long as many answers: it comes when nothing changes for a moment.
async function addLevers(mine, fit) {
  if (!fit.json?.verdict || fit.json.levers || fixed) return;
  await new Promise((resolve) => setTimeout(resolve, LEVERS_WAIT));
  if (mine !== turn) return;
  const answer = await ask("fit", body(state.case, "fit"), { signal: waiting.signal });
  if (mine !== turn || !answer.json?.levers) return;
  last.fit = { ...fit, json: { ...fit.json, levers: answer.json.levers } };
  showVerdict(byId("verdict"), state, last.fit, act, last.choices?.json);
  if (state.tab !== "memory") return;
  const panel = byId("panel-memory");
  redraw(panel, () => showMemory(panel, context()));
}

// Everything, from what was last answered; who was somewhere with the keyboard stays there.
function show() {
  const { id, dataset } = document.activeElement ?? {};
  showAll();
  const again = dataset?.choice
    ? document.querySelector(`[data-choice="${CSS.escape(dataset.choice)}"]`)
    : id
      ? byId(id)
      : null;
  if (again && again !== document.activeElement) again.focus({ preventScroll: true });
}

function showAll() {
  const { fit, choices, pinned } = last;
  const priced = fit.json?.verdict ? fit.json : null;
  document.title = `${state.case.recipe} on ${state.case.on} · Shardwright`;
  showVerdict(byId("verdict"), state, fit, act, choices?.json);
  if (fixed) showFixed(priced);
  else {
    showSource(byId("source"), state, lists, act);
    showCluster(byId("cluster"), state, lists, act);
    showControls(byId("layout"), state, choices?.json, priced?.layout ?? choices?.json?.layout, priced?.header, act);
  }
  byId("layout-now").textContent = priced ? degrees(priced.layout) : "";
  showPinned();
  hideTip();
  for (const tab of tabs) {
    const isNow = tab === state.tab;
    const button = byId(`tab-${tab}`);
    button.setAttribute("aria-selected", String(isNow));
    button.tabIndex = isNow ? 0 : -1;
    byId(`panel-${tab}`).hidden = !isNow;
  }
  const { offsetLeft, offsetWidth } = byId(`tab-${state.tab}`);
  const bar = byId("tabs");
  if (offsetLeft < bar.scrollLeft || offsetLeft + offsetWidth > bar.scrollLeft + bar.clientWidth) {
    bar.scrollLeft = offsetLeft - (bar.clientWidth - offsetWidth) / 2;
  }
  const panel = byId(`panel-${state.tab}`);
  const isStale = !priced && !["model", "receipts", "choose", "launch"].includes(state.tab);
  panel.classList.toggle("stale", isStale);
  byId("stale").hidden = !isStale;
  SHOWS[state.tab](panel, context());
}

// What a part of the page is shown from.
function context() {
  const { fit, choices, pinned } = last;
  return { state, act, fit: fit.json?.verdict ? fit.json : null, pinned, choices: choices?.json };
}

function degrees(layout) {
  const split = ["tp", "cp", "pp", "ep", "dp"].filter((key) => layout[key] > 1);
  return split.map((key) => `${key} ${layout[key]}`).join(" · ") || "nothing is split";
}

// In a report the case is said, not chosen.
function showFixed(fit) {
  put(byId("source"), el("p", {}, el("strong", {}, state.case.recipe)));
  put(byId("cluster"), el("p", {}, el("strong", {}, state.case.on)));
  const layout = fit?.layout ?? {};
  const derived = Object.fromEntries((layout.derived ?? []).map((one) => [one.key, one.why]));
  const rows = Object.entries(layout).filter(([key, value]) => key !== "derived" && value !== null);
  put(
    byId("layout"),
    el(
      "dl",
      { class: "said" },
      rows.map(([key, value]) => [
        el("dt", {}, key),
        el("dd", {}, String(value), derived[key] ? el("span", { class: "soft" }, ` ${derived[key]}`) : ""),
      ]),
    ),
  );
}

function showPinned() {
  const box = byId("pinned");
  const button = byId("pin");
  const isSame = state.pin && sameCase(state.pin, state.case);
  button.setAttribute("aria-pressed", String(Boolean(state.pin)));
  button.textContent = state.pin ? "Unpin" : "Pin";
  box.hidden = !state.pin;
  if (!state.pin) return;
  put(
    box,
    el(
      "p",
      {},
      el("strong", {}, "Pinned: "),
      el("code", {}, words(state.pin).map(quoted).join(" ")),
      isSame ? " is this case: change something, and the memory tab says what it does. " : " ",
      isSame
        ? ""
        : el(
            "button",
            { type: "button", class: "small", onclick: () => go({ case: state.pin, pin: state.case }) },
            "Swap",
          ),
    ),
  );
}

function makeTabs() {
  const bar = byId("tabs");
  for (const tab of tabs) {
    bar.append(
      el(
        "button",
        { type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": `panel-${tab}`, onclick: () => go({ tab }) },
        TITLES_OF_TABS[tab],
      ),
    );
    byId("panels").append(
      el("section", {
        id: `panel-${tab}`,
        role: "tabpanel",
        "aria-labelledby": `tab-${tab}`,
        tabindex: "0",
        hidden: true,
      }),
    );
  }
  bar.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement.id.replace("tab-", ""));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    act.tab(tabs[(to + tabs.length) % tabs.length]);
  });
}

async function copyLink() {
  const button = byId("copy-link");
  const { address } = await toAddress(state);
  const link = new URL(address, location.href).href;
  const done = await navigator.clipboard.writeText(link).then(
    () => true,
    () => false,
  );
  button.textContent = done ? "Copied" : "Copy the address bar";
  setTimeout(() => (button.textContent = "Copy link"), 1500);
}

async function readLists() {
  const [recipes, hardware] = await Promise.all([ask("recipes", {}), ask("hardware", {})]);
  lists.recipes = recipes.json?.recipes ?? [];
  lists.devices = hardware.json?.devices ?? [];
  lists.networks = hardware.json?.networks ?? [];
}

async function begin() {
  watchTheme(byId("theme"));
  makeTabs();
  // On a phone the answer comes before forty buttons.
  if (innerWidth <= 860) byId("layout-fold").open = false;
  addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  byId("pin").addEventListener("click", () => go({ pin: state.pin ? null : state.case }));
  if (fixed) {
    for (const id of ["copy-link", "pin"]) byId(id).hidden = true;
    state = { case: report().case, tab: "memory", pin: null };
    return refresh();
  }
  byId("copy-link").addEventListener("click", copyLink);
  watchDrops(act);
  addEventListener("popstate", async () => {
    state = await fromAddress(location.hash);
    refresh();
  });
  state = await fromAddress(location.hash);
  listed = readLists();
  await refresh();
  if (state.broken) act.say("Part of this link could not be read; the rest is shown.");
  let width = innerWidth;
  addEventListener("resize", () => {
    if (Math.abs(innerWidth - width) < 40) return;
    width = innerWidth;
    redraw(document.body, show);
  });
}

begin();
