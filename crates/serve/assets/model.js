// Model: the blocks as a strip, parameters by family and surface, and the text with its mistakes where they stand.

import { el, table, sentence, folded, put } from "./dom.js";
import { ask } from "./ask.js";
import { body, isJson } from "./state.js";
import { count, exact, percent } from "./units.js";
import { showPicture } from "./picture.js";
import { nameOf } from "./source.js";

let picture = null;
let editor = null;

export async function showModel(panel, { state, act, fit }) {
  if (!panel.firstChild) {
    picture = el("div", { class: "picture" });
    editor = act.fixed ? null : makeEditor(act);
    panel.append(picture, el("div", { class: "below" }), editor?.node ?? "");
  }
  const answer = await ask("params", body(state.case, "params"));
  const below = panel.querySelector(".below");
  if (answer.ok) {
    showPicture(picture, "pattern", body(state.case, "params"), { label: "Blocks and parameters" });
    picture.hidden = false;
    put(below, ...about(answer.json, fit));
  } else {
    picture.hidden = true;
    put(below);
  }
  editor?.show(
    state,
    answer.findings.filter((finding) => finding.severity === "error"),
  );
}

function about(params, fit) {
  const rows = Object.entries(params.by_surface)
    .sort(([, a], [, b]) => b.total - a.total)
    .map(([name, { total, active }]) => [name, exact(total), percent(total / params.total, 1), exact(active)]);
  const seams = fit?.seams ?? [];
  return [
    el(
      "p",
      {},
      `${params.recipe} has ${exact(params.total)} parameters; ${count(params.active)} act on a token. `,
      el("span", { class: "soft" }, "Source: ", params.source),
    ),
    seams.length
      ? el(
          "div",
          {},
          el("h3", {}, "What the chosen mode runs instead"),
          table(
            "Seams of the mode",
            ["seam", "the recipe says", "what runs", ""],
            seams.map((seam) => [seam.name, seam.wanted, seam.runs, seam.gives_up ? "given up" : "kept"]),
          ),
        )
      : null,
    folded("Parameters by surface, as numbers", () =>
      table(
        "Parameters by surface",
        [
          "surface",
          { text: "parameters", right: true },
          { text: "share", right: true },
          { text: "act on a token", right: true },
        ],
        rows,
      ),
    ),
  ].filter(Boolean);
}

// A text with numbered lines; the lines that are wrong are marked, and every finding leads to its place.
function makeEditor(act) {
  const area = el("textarea", {
    id: "text",
    rows: "22",
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    wrap: "off",
    "aria-label": "Text of the model: a recipe or a config.json",
    "aria-describedby": "text-findings",
  });
  const gutter = el("pre", { class: "gutter", "aria-hidden": "true" });
  const list = el("ol", { id: "text-findings", class: "findings", "aria-live": "polite" });
  const save = el(
    "p",
    { class: "soft" },
    "A recipe (TOML) or a Hugging Face config.json. It is read as you type and stays in this page and its link.",
  );
  let shownFor = null;
  let wait = 0;
  area.addEventListener("input", () => {
    number(gutter, area.value, []);
    clearTimeout(wait);
    wait = setTimeout(() => {
      const text = area.value;
      shownFor = text;
      if (text.trim()) act.edited({ recipe: nameOf(isJson(text) ? "config" : "mine", text), text });
    }, 350);
  });
  area.addEventListener("scroll", () => (gutter.scrollTop = area.scrollTop));
  const node = el(
    "details",
    { class: "editor" },
    el("summary", {}, "The model’s text"),
    save,
    el("div", { class: "sheet" }, gutter, area),
    list,
  );
  node.addEventListener("toggle", () => node.open && number(gutter, area.value, []));

  async function show(state, findings) {
    const text = state.case.text ?? (await builtIn(state.case.recipe));
    if (text !== shownFor && document.activeElement !== area) {
      area.value = text;
      shownFor = text;
    } else if (text !== area.value && document.activeElement !== area) area.value = text;
    number(gutter, area.value, findings);
    put(list, ...findings.map((finding) => placed(finding, area)));
    if (findings.some((finding) => finding.line)) node.open = true;
  }
  return {
    node,
    show,
    open: () => {
      node.open = true;
      area.focus();
      node.scrollIntoView({ block: "start" });
    },
  };
}

export function openEditor() {
  editor?.open();
}

async function builtIn(name) {
  const answer = await ask("recipes", { name });
  return answer.json?.toml ?? "";
}

function number(gutter, text, findings) {
  const wrong = new Map(findings.filter((finding) => finding.line).map((finding) => [finding.line, finding.message]));
  const lines = text.split("\n").map((_, at) => {
    const mark = wrong.has(at + 1);
    return el(
      "span",
      { class: mark ? "wrong" : undefined, title: mark ? wrong.get(at + 1) : undefined },
      `${mark ? "✖ " : ""}${at + 1}\n`,
    );
  });
  put(gutter, ...lines);
}

function placed(finding, area) {
  const go = () => {
    const lines = area.value.split("\n");
    // Columns count characters, a text area counts UTF-16 units.
    const before = lines.slice(0, finding.line - 1).reduce((sum, line) => sum + line.length + 1, 0);
    const letters = [...(lines[finding.line - 1] ?? "")];
    const start = before + letters.slice(0, finding.column - 1).join("").length;
    area.focus();
    const word = /^(?:"[^"]*"|[^\s=,]+)/.exec(letters.slice(finding.column - 1).join(""))?.[0] ?? "";
    area.setSelectionRange(start, start + word.length);
    area.scrollTop = Math.max(0, (finding.line - 6) * parseFloat(getComputedStyle(area).lineHeight));
  };
  return el(
    "li",
    { class: "finding error" },
    finding.line
      ? el("button", { type: "button", class: "small", onclick: go }, `line ${finding.line}, column ${finding.column}`)
      : null,
    " ",
    sentence(finding.message),
    " ",
    el("code", { class: "rule" }, finding.rule),
    finding.hint ? el("div", { class: "hint" }, sentence(finding.hint)) : null,
  );
}
