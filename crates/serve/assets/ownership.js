// Ownership: the mesh as a grid of ranks; a rank's tensors, groups, stage and experts; a tensor's holders.

import { el, table, sentence, folded, put } from "./dom.js";
import { ask } from "./ask.js";
import { body, resolved } from "./state.js";
import { count, exact, ranges } from "./units.js";
import { showPicture } from "./picture.js";
import { findingsList } from "./findings.js";

// Rows of a table at first; a person narrows them by a word.
const SHOWN = 200;

export async function showOwnership(panel, context) {
  const { state, fit, act } = context;
  if (!panel.firstChild) {
    panel.append(
      el("div", { id: "rank-form" }),
      el("div", { class: "picture", id: "mesh-picture" }),
      el("div", { id: "tensor-panel", "aria-live": "polite" }),
      el("div", { id: "rank-panel", "aria-live": "polite" }),
      el("div", { id: "cannot-fix" }),
    );
  }
  if (!fit) return;
  const layout = fit.layout;
  const rank = Math.min(state.rank ?? 0, layout.world - 1);
  const job = resolved(state.case, layout);
  put(panel.querySelector("#rank-form"), form(rank, layout.world, act));
  const pick = ({ rank: picked }) => act.look({ rank: Number(picked) });
  pick.accepts = (data) => data.rank !== undefined;
  const inMesh = { ...body({ ...job, on: state.case.on }, "mesh"), rank };
  showPicture(panel.querySelector("#mesh-picture"), "mesh", inMesh, { label: "Ranks by node and stage", pick });
  const [mesh, splits, stages] = await Promise.all([
    ask("mesh", inMesh),
    ask("splits", { ...body(job, "splits"), world: layout.world, rank }),
    ask("stages", body(state.case, "stages")),
  ]);
  const about = panel.querySelector("#rank-panel");
  if (!mesh.ok) return put(about, findingsList(mesh.findings));
  const place = placeOf(rank, mesh.json.rank, stages.json);
  if (!splits.ok) return put(about, ...place, findingsList(splits.findings));
  put(about, ...place, ...holdingsOf(splits.json, act));
  put(panel.querySelector("#cannot-fix"), ...cannotFix(splits.json));
  await showTensor(panel.querySelector("#tensor-panel"), state, job, layout, act);
}

function form(rank, world, act) {
  const input = el("input", {
    type: "number",
    id: "rank",
    min: "0",
    max: String(world - 1),
    value: String(rank),
    "data-choice": "rank",
    onchange: () => {
      const isOne = /^\d+$/.test(input.value) && Number(input.value) < world;
      if (isOne) act.look({ rank: Number(input.value) });
      else put(wrong, ` There is no rank ${input.value || "without a number"}: they are 0 to ${exact(world - 1)}.`);
    },
  });
  const wrong = el("strong", { role: "alert" });
  return el(
    "p",
    {},
    el("label", { for: "rank" }, "Rank "),
    input,
    ` of ${exact(world)}. Pick one in the grid, or type its number.`,
    wrong,
  );
}

// Where a rank stands: its stage, and the groups that it talks in.
function placeOf(rank, at, stages) {
  const stage = at.coordinates.pp;
  const own = stages?.stages?.find((one) => one.stage === stage);
  const groups = Object.entries(at.groups)
    .filter(([, group]) => group.len > 1)
    .map(([axis, group]) => [
      axis,
      String(at.coordinates[axis]),
      String(group.len),
      ranges(group.ranks.slice(0, 64)) + (group.len > 64 ? " …" : ""),
    ]);
  const right = (text) => ({ text, right: true });
  return [
    el("h3", {}, `Rank ${rank}: stage ${stage}`),
    own ? el("p", {}, own.chunks.map(chunkWords)) : null,
    groups.length
      ? table("Groups of the rank", ["group", right("place in it"), right("members"), "ranks"], groups)
      : el("p", {}, "It talks to no other rank."),
  ];
}

function chunkWords(chunk, index) {
  return [
    index ? "; " : "",
    `layers ${chunk.first_layer}–${chunk.first_layer + chunk.layers - 1} `,
    el("code", { class: "blocks" }, chunk.blocks),
    chunk.owns.length ? ` and ${chunk.owns.join(", ")}` : "",
  ];
}

// What a rank holds, and what it exchanges.
function holdingsOf(splits, act) {
  const experts = splits.tensors.find((tensor) => tensor.role === "expert");
  const right = (text) => ({ text, right: true });
  const moves = splits.collectives.map((one) => [
    one.axis,
    one.place,
    one.forward,
    one.backward,
    count(one.elements),
    String(one.count),
  ]);
  const quality = splits.split_quality.map((one) => [
    one.name,
    one.params ? count(one.params) : "",
    one.quality,
    one.why,
    one.cannot_fix,
  ]);
  return [
    el("h3", {}, `It holds ${exact(splits.rank_params)} parameters`),
    experts ? el("p", {}, `Experts: ${ofExperts(experts)}.`) : null,
    tensorTable(splits.tensors, act),
    folded(`What moves between ranks (${moves.length})`, () =>
      table("Collectives", ["axis", "where", "forward", "backward", right("elements"), right("times")], moves),
    ),
    folded("How well it splits, by rule", () =>
      table("Quality of splits", ["rule", right("parameters"), "quality", "why", "what it cannot fix"], quality),
    ),
  ];
}

function ofExperts({ holds }) {
  if (!holds) return "all of them, whole";
  return holds.startsWith("expert") ? holds : `all of them, ${holds} of each`;
}

// Equal tensors of many layers are many rows: a word narrows them.
function tensorTable(tensors, act) {
  const box = el("div", {});
  const input = el("input", {
    type: "search",
    id: "tensor-filter",
    placeholder: "layers.1, expert, norm…",
    "data-choice": "tensor-filter",
    oninput: () => fill(),
  });
  const fill = () => {
    const word = input.value.trim().toLowerCase();
    const found = tensors.filter(
      (tensor) =>
        !word ||
        [tensor.path, tensor.rule, tensor.split, tensor.family].some((text) => text.toLowerCase().includes(word)),
    );
    const rows = found
      .slice(0, SHOWN)
      .map((tensor) => [
        act.fixed
          ? tensor.path
          : el(
              "button",
              { type: "button", class: "link", onclick: () => act.look({ tensor: tensor.path }) },
              tensor.path,
            ),
        shape(tensor.logical),
        shape(tensor.per_rank),
        tensor.split,
        tensor.holds || "the whole",
        tensor.rule,
      ]);
    put(
      box,
      table("Tensors of the rank", ["tensor", "whole", "here", "split", "holds", "rule"], rows),
      found.length > SHOWN
        ? el("p", { class: "soft" }, `${SHOWN} of ${found.length} are shown; a word above finds others.`)
        : "",
    );
  };
  fill();
  return el("div", {}, el("p", {}, el("label", { for: "tensor-filter" }, `Find among ${tensors.length} `), input), box);
}

function shape(dims) {
  return dims.map(exact).join("\u00a0×\u00a0");
}

async function showTensor(box, state, job, layout, act) {
  if (!state.tensor) return put(box);
  const answer = await ask("splits", { ...body(job, "splits"), world: layout.world, tensor: state.tensor });
  if (!answer.ok) return put(box, el("h3", {}, "That tensor is not in this model"), findingsList(answer.findings));
  const { tensor, holders, why, cannot_fix } = answer.json;
  const rows = holders.map((part) => [
    part.holds,
    String(part.stage),
    String(part.count),
    el("span", {}, part.ranks.replaceAll("-", "–").replaceAll(",", ", ")),
  ]);
  put(
    box,
    el(
      "h3",
      {},
      el("code", {}, tensor.path),
      " ",
      el("button", { type: "button", class: "small", onclick: () => act.look({ tensor: undefined }) }, "Close"),
    ),
    el(
      "p",
      {},
      `${shape(tensor.logical)} in ${tensor.dtype}, ${tensor.split}, stepped by ${tensor.optimizer}. Rule `,
      el("code", { class: "rule" }, tensor.rule),
      `: ${why}. What it cannot fix: ${cannot_fix}.`,
    ),
    table(
      "Who holds which part",
      ["part", { text: "stage", right: true }, { text: "copies", right: true }, "ranks"],
      rows,
      { id: "holders" },
    ),
  );
}

function cannotFix(splits) {
  return [
    el("h3", {}, "What no axis can fix"),
    el(
      "ul",
      {},
      splits.no_axis_can_fix.map((line) => el("li", {}, sentence(line))),
    ),
  ];
}
