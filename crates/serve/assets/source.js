// Which model and which cluster: a built-in recipe, a file that is dropped or chosen, or a text.

import { el, put } from "./dom.js";
import { isJson } from "./state.js";
import { count } from "./units.js";

// Larger files are refused by the server too.
const LARGEST = 900_000;

export function showSource(box, state, lists, act) {
  const isText = state.case.text !== undefined;
  // Who spells a name in the list keeps the list under the keys.
  const made = isText ? "" : `built in, ${lists.recipes.length}`;
  if (made && box.dataset.made === made) {
    box.querySelector("#recipe").value = state.case.recipe;
    put(box.querySelector(".features"), ...features(state, lists, act));
    return;
  }
  box.dataset.made = made;
  const select = el(
    "select",
    { id: "recipe", "aria-label": "Model", onchange: () => select.value && act.start({ recipe: select.value }) },
    isText ? el("option", { value: "", selected: true }, `${state.case.recipe} (yours)`) : null,
    lists.recipes.map((recipe) =>
      el(
        "option",
        { value: recipe.name, selected: !isText && recipe.name === state.case.recipe },
        `${recipe.name} · ${count(recipe.total)}`,
      ),
    ),
  );
  const file = el("input", {
    type: "file",
    id: "file",
    accept: ".toml,.json,application/json",
    class: "unseen",
    tabindex: "-1",
    "aria-label": "A recipe or config.json",
  });
  file.addEventListener("change", () => file.files[0] && readFile(file.files[0], act));
  put(
    box,
    select,
    el(
      "div",
      { class: "row" },
      el("button", { type: "button", class: "small", onclick: () => file.click() }, "Open a file…"),
      el(
        "button",
        { type: "button", class: "small", id: "edit-text", onclick: () => act.edit() },
        isText ? "Edit the text" : "Paste or edit text",
      ),
      file,
    ),
    el("p", { class: "soft" }, "or drop a recipe or a Hugging Face config.json anywhere"),
    el(
      "div",
      { class: "features", role: "group", "aria-label": "Features of the model" },
      features(state, lists, act),
    ),
  );
}

function features(state, lists, act) {
  const known = lists.recipes.find((recipe) => recipe.name === state.case.recipe && state.case.text === undefined);
  if (!known?.features?.length) return [];
  const on = state.case.with ?? [];
  const flip = (feature) => {
    const next = on.includes(feature) ? on.filter((other) => other !== feature) : [...on, feature];
    act.change({ with: next.length ? next : undefined });
  };
  return known.features.map((feature) =>
    el(
      "label",
      { class: "switch" },
      el("input", {
        type: "checkbox",
        checked: on.includes(feature),
        "data-choice": `with-${feature}`,
        onchange: () => flip(feature),
      }),
      feature,
    ),
  );
}

// 8xH200, 64x8xH200, 64xH100@roce400.
function parts(on) {
  const [, devices, device, network] = /^((?:\d+x)?\d+)x([^@]+)(?:@(.+))?$/.exec(on) ?? [null, "8", "H200", undefined];
  const number = devices.split("x").reduce((product, part) => product * Number(part), 1);
  return { number, device, network };
}

export function showCluster(box, state, lists, act) {
  const now = parts(state.case.on);
  const set = (more) => {
    const { number, device, network } = { ...now, ...more };
    act.change({ on: `${number}x${device}${network ? `@${network}` : ""}` });
  };
  const number = el("input", {
    type: "number",
    id: "devices",
    min: "1",
    max: "100000",
    value: String(now.number),
    inputmode: "numeric",
    onchange: () => /^[1-9]\d{0,5}$/.test(number.value) && set({ number: Number(number.value) }),
  });
  const known = lists.devices.some((device) => device.name === now.device);
  put(
    box,
    el(
      "div",
      { class: "fields" },
      el("label", {}, el("span", {}, "Devices"), number),
      el(
        "label",
        {},
        el("span", {}, "of"),
        el(
          "select",
          { id: "device", onchange: (event) => set({ device: event.target.value, network: undefined }) },
          known ? null : el("option", { value: now.device, selected: true }, now.device),
          lists.devices.map((device) =>
            el(
              "option",
              { value: device.name, selected: device.name === now.device },
              `${device.name} · ${Math.round(device.memory_bytes / 2 ** 30)} GiB`,
            ),
          ),
        ),
      ),
      el(
        "label",
        {},
        el("span", {}, "Network"),
        el(
          "select",
          { id: "network", onchange: (event) => set({ network: event.target.value || undefined }) },
          el("option", { value: "" }, "the device’s usual one"),
          lists.networks.map((network) =>
            el("option", { value: network.key, selected: network.key === now.network }, network.key),
          ),
        ),
      ),
    ),
  );
}

export async function readFile(file, act) {
  if (file.size > LARGEST) return act.say(`${file.name} is too large for a recipe or a config.json`);
  const text = await file.text();
  act.start({ recipe: nameOf(file.name, text), text });
}

// A config.json says little of what it is called; a recipe has a name.
export function nameOf(file, text) {
  const named = isJson(text)
    ? /"(?:_name_or_path|model_type)"\s*:\s*"([^"]+)"/.exec(text)
    : /^name\s*=\s*"([^"]+)"/m.exec(text);
  const base = (named?.[1] ?? file)
    .split("/")
    .pop()
    .replace(/\.(toml|json)$/i, "");
  return (
    base
      .replace(/[^A-Za-z0-9._-]/g, "-")
      .replace(/^[-.]+/, "")
      .slice(0, 60) || "mine"
  );
}

// A file over the window shows where it may go, and is read where it falls.
export function watchDrops(act) {
  const over = document.getElementById("drop");
  let depth = 0;
  const hasFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragenter", (event) => {
    if (!hasFile(event)) return;
    depth += 1;
    over.hidden = false;
  });
  addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (depth === 0) over.hidden = true;
  });
  addEventListener("dragover", (event) => hasFile(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    depth = 0;
    over.hidden = true;
    const file = event.dataTransfer.files[0];
    if (file) readFile(file, act);
  });
}
