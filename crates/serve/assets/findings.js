// What is wrong or worth knowing, with the rule that says so and values that would do.

import { el, sentence } from "./dom.js";

const RANK = { error: 0, warning: 1, note: 2 };

// Findings, errors first. `mend` makes a button of every value that would do: `mend.offers(fix)` says which.
export function findingsList(findings, mend) {
  const sorted = [...findings].sort((a, b) => (RANK[a.severity] ?? 0) - (RANK[b.severity] ?? 0));
  return el(
    "ul",
    { class: "findings" },
    sorted.map((finding) => item(finding, mend)),
  );
}

function item(finding, mend) {
  const values = mend && finding.fix ? mend.offers(finding.fix).slice(0, 8) : [];
  return el(
    "li",
    { class: `finding ${finding.severity}` },
    el("span", { class: "badge" }, finding.severity),
    finding.line ? el("span", { class: "soft" }, ` line ${finding.line}, column ${finding.column} `) : " ",
    sentence(finding.message),
    " ",
    el("code", { class: "rule" }, finding.rule),
    finding.quote ? el("div", { class: "soft" }, "the engine says: ", el("q", {}, finding.quote)) : null,
    finding.hint ? el("div", { class: "hint" }, sentence(finding.hint)) : null,
    values.length
      ? el(
          "div",
          { class: "mend" },
          values.map((value) => fixButton(finding.fix.key, value, mend)),
        )
      : null,
  );
}

function fixButton(key, value, mend) {
  return el("button", { type: "button", class: "small", onclick: () => mend.set(key, value) }, `${key} ${value}`);
}
