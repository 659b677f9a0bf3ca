// Launch: every file that `launch` writes, what each argument comes from, and all of it as a zip.

import { el, table, sentence, folded, command, copyButton, save, put } from "./dom.js";
import { ask } from "./ask.js";
import { body } from "./state.js";
import { findingsList } from "./findings.js";
import { zip } from "./zip.js";

let open = "launch.sh";

export async function showLaunch(panel, { state, fit }) {
  if (!fit && !panel.firstChild) return put(panel, el("p", {}, "A refused layout cannot be launched."));
  const answer = await ask("launch", body(state.case, "launch"));
  if (!answer.json?.files) {
    const reasons = answer.findings.filter((finding) => finding.severity === "error");
    put(panel, el("h3", {}, "This cannot be launched"), findingsList(reasons.length ? reasons : answer.findings));
    return;
  }
  const launch = answer.json;
  const name = launch.identity.job_name;
  put(
    panel,
    el(
      "p",
      {},
      `Engine ${launch.engine}, lane ${launch.lane}${launch.mode ? `, mode ${launch.mode}` : ""}: ${launch.arguments.length} arguments, ${launch.environment.length} variables, ${launch.files.length} files. Put the folder where every node sees it, then there:`,
    ),
    command(launch.command),
    el(
      "div",
      { class: "row" },
      el(
        "button",
        { type: "button", class: "primary", id: "zip", onclick: () => download(name, launch.files) },
        `Download ${name}.zip`,
      ),
      el("span", { class: "soft" }, "the same files as ", el("code", {}, "shardwright launch … --out DIR"), " writes"),
    ),
    files(launch.files, panel),
    ...argumentsTable(launch),
    ...fieldsTable(launch),
    findingsList(launch.findings ?? []),
  );
}

function download(name, all) {
  save(`${name}.zip`, new Blob(zip(all.map((file) => ({ ...file, path: `${name}/${file.path}` })))), "application/zip");
}

// A list of names beside the text of one.
function files(all, panel) {
  const shown = all.find((file) => file.path === open) ?? all[0];
  const view = el("div", { class: "file" });
  const show = (file) => {
    open = file.path;
    put(
      view,
      el(
        "div",
        { class: "row" },
        el("strong", {}, file.path),
        copyButton(file.contents),
        el(
          "button",
          {
            type: "button",
            class: "small",
            onclick: () => save(file.path.split("/").pop(), file.contents, "text/plain"),
          },
          "Download",
        ),
      ),
      el("pre", { tabindex: "0", role: "region", "aria-label": file.path }, file.contents),
    );
    for (const button of list.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.textContent === file.path));
  };
  const list = el(
    "div",
    { class: "names", role: "group", "aria-label": "Files" },
    all.map((file) => el("button", { type: "button", class: "link", onclick: () => show(file) }, file.path)),
  );
  show(shown);
  return el("div", { class: "files" }, list, view);
}

function argumentsTable(launch) {
  const rows = launch.arguments.map((argument) => [
    el("code", {}, argument.flag),
    el("code", {}, argument.values.join(" ")),
    argument.from,
    sentence(argument.why),
  ]);
  const environment = launch.environment.map((one) => [
    el("code", {}, one.name),
    el("code", {}, one.value),
    "environment",
    sentence(one.why),
  ]);
  return [
    el("h3", {}, "What each argument comes from"),
    table("Arguments and variables", ["argument", "value", "from", "why"], [...rows, ...environment]),
  ];
}

function fieldsTable(launch) {
  const told = (one) => {
    const [how, what] = typeof one.told === "string" ? [one.told, ""] : Object.entries(one.told)[0];
    const text = Array.isArray(what) ? what.join(" ") : String(what);
    return how === "by" ? el("code", {}, text) : `${how}: ${text}`;
  };
  return [
    folded(`How the engine is told each field of the recipe (${launch.fields.length})`, () =>
      table(
        "Fields of the recipe",
        ["field", "value", "told by"],
        launch.fields.map((one) => [el("code", {}, one.path), el("code", { class: "long" }, one.value), told(one)]),
      ),
    ),
  ];
}
