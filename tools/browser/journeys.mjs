// What people come to the page for, done once with the pointer at each width and once with the keyboard alone.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { crc32 } from "node:zlib";

const verdict = (page) => page.evaluate(`document.getElementById("verdict").dataset.verdict`);
const hash = (page) => page.evaluate("location.hash");
const parameters = async (page) => new URLSearchParams((await hash(page)).slice(1));

// Waits for an address that has these words, then for the answer to it.
async function becomes(page, words) {
  await page.until(
    `${JSON.stringify(words)}.every((w) => decodeURIComponent(location.hash).includes(w))`,
    `the address has ${words}`,
  );
  await page.settled();
}

async function opens(page, tab) {
  await page.click(`#tab-${tab}`);
  await page.until(`!document.getElementById("panel-${tab}").hidden`, `${tab} is open`);
  await page.settled();
}

// A picture with parts that can be read.
const isDrawn = (page, box) =>
  page.until(`document.querySelectorAll("${box} svg [data-tip]").length > 0`, `${box} is drawn`);

export async function byPointer(page, { address, folder, downloads, look }) {
  await page.go(address);
  assert.equal(await verdict(page), "fits");
  await isDrawn(page, "#memory-picture");
  await page.hover("#memory-picture [data-line=gradients]");
  assert.match(await page.text("#tip"), /gradients: .*iB[^]*scales with/);
  await look("memory");

  // A model of one's own, by letting its config.json fall on the page.
  await page.drop(join(folder, "config.json"));
  await becomes(page, ["r=mixtral", "text="]);
  assert.equal(await verdict(page), "fits");
  await opens(page, "model");
  await isDrawn(page, "#panel-model");
  await look("model", "#tabs");

  // A refused value says which rule refuses it, and cannot be chosen.
  await opens(page, "memory");
  const before = await page.text("#verdict p");
  // On a phone the controls are folded.
  if (!(await page.evaluate(`document.getElementById("layout-fold").open`))) await page.click("#layout-fold > summary");
  const refused = await page.until(
    `document.querySelector("#layout .choice[aria-disabled=true]")?.dataset.choice`,
    "a value is refused",
  );
  await page.hover(`[data-choice="${refused}"]`);
  const why = await page.evaluate(
    `document.querySelector(\`[data-choice="${refused}"]\`).closest("fieldset").querySelector(".why").innerText`,
  );
  assert.match(why, /\[[a-z0-9-]+\/[a-z0-9-]+\]/, "the rule is named");
  const held = await hash(page);
  await page.click(`[data-choice="${refused}"]`);
  assert.equal(await hash(page), held, "a refused value changes nothing");

  // Pin, change degrees, compare.
  await page.click("#pin");
  await becomes(page, ["pin="]);
  await page.click('[data-choice="tp=2"]');
  await becomes(page, ["tp=2"]);
  assert.notEqual(await page.text("#verdict p"), before);
  await page.click('[data-choice="pp=2"]');
  await becomes(page, ["pp=2"]);
  await isDrawn(page, "#difference-picture");
  assert.match(await page.text("#memory-pinned"), /tp 1 → 2/);
  await look("pinned", "#memory-pinned");
  await page.click("#memory-pinned summary");
  await page.until(`document.querySelector("#difference tr.sum")`, "the difference as numbers");
  assert.match(await page.text("#difference"), /gradients[^]*−/);

  // Who owns what.
  await opens(page, "ownership");
  await isDrawn(page, "#mesh-picture");
  await page.click('#mesh-picture [data-rank="5"]');
  await becomes(page, ["rank=5"]);
  await page.until(`document.querySelector("#rank-panel h3")?.innerText.startsWith("Rank 5")`, "rank 5 is shown");
  assert.match(await page.text("#rank-panel"), /Experts: /);
  await page.evaluate(
    `(() => { const f = document.getElementById("tensor-filter"); f.value = "experts"; f.dispatchEvent(new Event("input")); })()`,
  );
  await page.click("#rank-panel tbody button");
  await page.until(`document.querySelectorAll("#holders tbody tr").length > 0`, "its holders are shown");
  assert.match(await page.text("#tensor-panel"), /Rule moe\//);
  assert.match(await page.text("#cannot-fix"), /no axis/i);
  await look("ownership", "#tabs");

  // The step.
  await opens(page, "time");
  await isDrawn(page, "#schedule-picture");
  assert.match(await page.text("#time-parts"), /matrix products/);
  await look("time", "#tabs");
  const width = () => page.evaluate(`document.querySelector("#schedule-picture svg").getBoundingClientRect().width`);
  const whole = await width();
  await page.click('#schedule-picture button[aria-label="Zoom in"]');
  await page.until(
    `document.querySelector("#schedule-picture svg").getBoundingClientRect().width > ${1.4 * whole}`,
    "time is drawn wider",
  );

  // A search, and one of its points as the case.
  await opens(page, "choose");
  await page.click("#search");
  await isDrawn(page, "#frontier-picture");
  assert.match(await page.text("#search-answer"), /layouts, .* legal/);
  await page.click("#search-answer .lost summary");
  await page.until(`document.querySelector("#search-answer .lost details[open] p:not(.soft)")`, "a count opens");
  await look("choose", "#frontier-picture");
  const old = await hash(page);
  // Points may lie on one another: one that is on top.
  await page.until(
    `[...document.querySelectorAll("#frontier-picture .picks")].some((p) => { p.scrollIntoView({ block: "center" });
      const r = p.getBoundingClientRect(); const on = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
      if (on === p) p.id = "a-point"; return on === p; })`,
    "a point can be reached",
  );
  await page.click("#a-point");
  await page.until(`location.hash !== ${JSON.stringify(old)}`, "a point becomes the case");
  await page.settled();
  assert.ok((await parameters(page)).has("recompute") || (await parameters(page)).has("mbs"), await hash(page));

  // A whole run: what it takes, and when to save.
  await opens(page, "choose");
  for (const [key, value] of [["tokens", "1T"], ["days", "1"], ["price_per_device_hour", "2.5"]]) {
    await page.evaluate(
      `(() => { const f = document.getElementById("run-${key}"); f.value = "${value}"; f.dispatchEvent(new Event("change")); })()`,
    );
    await becomes(page, [`${key}=${value}`]);
  }
  await page.click("#search");
  await page.until(`document.getElementById("run-table")`, "the run is added up");
  assert.match(await page.text("#run-table"), /days[^]*device-hours[^]*cost[^]*useful[^]*checkpoint every/);
  assert.match(await page.text("#run-late"), /longer than the 1 days/);
  await isDrawn(page, "#frontier-picture");
  await look("run", "#run-table");
  await opens(page, "launch");
  await page.until(`document.getElementById("panel-launch").innerText.includes("launch/budget")`, "launch is told the interval");
  for (const key of ["tokens", "days", "price_per_device_hour"]) {
    await opens(page, "choose");
    await page.evaluate(
      `(() => { const f = document.getElementById("run-${key}"); f.value = ""; f.dispatchEvent(new Event("change")); })()`,
    );
    await page.until(`!location.hash.includes("${key}=")`, "the run is forgotten");
    await page.settled();
  }

  // A search that is given up.
  await page.choose("#devices", "64");
  await becomes(page, ["on=64x"]);
  await page.choose("#recipe", "deepseek-v3");
  await becomes(page, ["r=deepseek-v3"]);
  await opens(page, "choose");
  await page.click("#search");
  await page.click("#cancel");
  await page.until(
    `document.getElementById("search-answer").innerText.includes("cancelled")`,
    "the search is cancelled",
  );

  // Back to where it was, as a browser goes back.
  await page.evaluate("history.back()");
  await becomes(page, ["text="]);

  // What to run, as a zip.
  await page.choose("#devices", "8");
  await becomes(page, ["on=8x"]);
  await opens(page, "launch");
  await page.until(`document.getElementById("zip")`, "a launch is there");
  await look("launch", "#tabs");
  const launch = await page.evaluate(`[...document.querySelectorAll(".names button")].map((b) => b.innerText)`);
  await page.click("#zip");
  const name = await arrived(downloads);
  const files = unzipped(readFileSync(join(downloads, name)));
  assert.deepEqual([...files.keys()].map((path) => path.split("/").slice(1).join("/")).sort(), [...launch].sort());
  const script = files.get([...files.keys()].find((path) => path.endsWith("/launch.sh")));
  assert.match(script.text, /^#!/);
  assert.equal(script.mode & 0o777, 0o755);

  // A link is an answer.
  const link = await page.evaluate("location.href");
  const said = await page.text("#verdict h2");
  await page.go("about:blank").catch(() => null);
  await page.go(link);
  assert.equal(await page.text("#verdict h2"), said);
  await page.until(`document.getElementById("zip")`, "the same tab");

  // Text from outside is text, whatever stands in it.
  await page.click("#edit-text");
  await page.until(`document.activeElement.id === "text"`, "the text is there");
  const source = "source = '<img src=x onerror=alert(1)>'";
  await page.evaluate(`fetch("/api/v1/recipes?name=llama3-8b").then((r) => r.json()).then(({ toml }) => {
    const t = document.getElementById("text");
    t.value = toml.replace(/^source = .*$/m, ${JSON.stringify(source)});
    t.dispatchEvent(new Event("input")); })`);
  await becomes(page, ["r=llama3-8b", "text="]);
  await page.until(`document.querySelector("#panel-model .below").textContent.includes("<img src=x")`, "it is shown");
  assert.equal(await page.evaluate(`document.querySelectorAll("#panels img").length`), 0);

  // Mistakes stand where they are.
  await page.evaluate(
    `(() => { const t = document.getElementById("text"); t.value = 'name = "mine"\\npattern = "AF"\\ndetph = 4\\n'; t.dispatchEvent(new Event("input")); })()`,
  );
  await page.until(
    `document.querySelector("#text-findings button")?.innerText.startsWith("line ")`,
    "a finding has a place",
  );
  assert.equal(await verdict(page), "refused");
  assert.match(await page.text("#text-findings"), /line 3, column 1[^]*did you mean depth/);
  await look("mistake", "#tabs");

  // What became of runs.
  await page.go(`${address}#r=llama3-8b&on=8xH200&tp=2&tab=receipts`);
  await page.until(`document.querySelectorAll("#receipt-list tbody tr").length === 2`, "two receipts are listed");
  for (const at of [1, 2]) await page.click(`#receipt-list tbody tr:nth-child(${at}) input`);
  await page.click("#compare");
  await page.until(`document.getElementById("receipt-detail").innerText.includes("against")`, "they are compared");
  await page.click("#drift");
  await page.until(`document.getElementById("receipt-detail").innerText.includes("Drift over 2 runs")`, "their drift");
  await page.click("#receipt-list tbody tr:nth-child(1) button");
  await page.until(`document.getElementById("receipt-detail").innerText.includes("allocated peak")`, "one is shown");
  await look("receipts", "#tabs");
}

// A report opens from disk, with nothing but what it holds.
export async function fromDisk(page, { report, look }) {
  await page.go(report);
  assert.equal(await verdict(page), "fits");
  const tabs = await page.evaluate(`[...document.querySelectorAll("[role=tab]")].map((tab) => tab.id.slice(4))`);
  for (const tab of ["model", "memory", "ownership", "time", "launch"]) assert.ok(tabs.includes(tab), tab);
  const pictures = {
    memory: "#memory-picture",
    ownership: "#mesh-picture",
    time: "#schedule-picture",
    model: "#panel-model",
  };
  for (const [tab, picture] of Object.entries(pictures)) {
    await opens(page, tab);
    await isDrawn(page, picture);
    await look(tab);
  }
  await opens(page, "launch");
  await page.until(`document.getElementById("zip")`, "a launch is there");
  await look("launch");
  assert.equal(
    await page.evaluate(`document.querySelectorAll("#layout button, #source select").length`),
    0,
    "nothing is offered that cannot be answered",
  );
}

// Every tab in dark colours: what is read there, and whether it can be.
export async function inTheDark(page, { address, look }) {
  const kase = "r=nam56r&on=16xH100&tp=2&pp=2&pin=r%3Dnam56r%26on%3D16xH100%26tp%3D2";
  const pictures = {
    model: "#panel-model",
    memory: "#difference-picture",
    ownership: "#mesh-picture",
    time: "#schedule-picture",
  };
  for (const [tab, picture] of Object.entries(pictures)) {
    await page.go(`${address}#${kase}&tab=${tab}`);
    await isDrawn(page, picture);
    await look(tab, "#tabs");
  }
  await page.go(`${address}#${kase}&tab=choose`);
  await page.click("#search");
  await isDrawn(page, "#frontier-picture");
  await look("choose", "#frontier-picture");
  await page.go(`${address}#${kase}&tab=launch`);
  await page.until(`document.getElementById("zip")`, "a launch is there");
  await look("launch", "#tabs");
  await page.go(`${address}#r=llama3-70b&on=8xH100`);
  assert.equal(await verdict(page), "does-not-fit");
  await page.until(`document.querySelector("#verdict button[title^=costs]")`, "what to change is said");
  await look("does-not-fit");
  await page.go(`${address}#r=llama3-70b&on=8xH100&tp=3`);
  assert.equal(await verdict(page), "refused");
  await look("refused");
  await page.click("#verdict .mend button");
  await page.until(`document.getElementById("verdict").dataset.verdict !== "refused"`, "a button mends it");
}

export async function byKeyboard(page, { address, folder, downloads, look }) {
  await page.go(address);
  await page.press("Tab");
  assert.equal(await page.evaluate("document.activeElement.className"), "skip", "the first stop leads to the answer");
  // Another model.
  await page.tabTo("#recipe");
  await page.spell("llama3-8b");
  await becomes(page, ["r=llama3-8b"]);
  // Degrees: arrow keys walk over values, the refused ones say why.
  await page.tabTo('[data-choice^="tp="]');
  for (let at = 0; at < 12 && !(await page.evaluate(`document.activeElement.dataset.choice === "tp=2"`)); at += 1)
    await page.press("ArrowRight");
  await page.press("Enter");
  await becomes(page, ["tp=2"]);
  assert.equal(await page.evaluate("document.activeElement.dataset.choice"), "tp=2", "the keyboard stays where it was");
  const seen = await page.evaluate(`getComputedStyle(document.activeElement).outlineStyle`);
  assert.notEqual(seen, "none", "focus is seen");
  // Pin, and another degree.
  await page.tabTo("#pin", { back: true });
  await page.press("Space");
  await becomes(page, ["pin="]);
  await page.tabTo('[data-choice^="pp="]');
  for (let at = 0; at < 12 && !(await page.evaluate(`document.activeElement.dataset.choice === "pp=2"`)); at += 1)
    await page.press("ArrowRight");
  await page.press("Enter");
  await becomes(page, ["pp=2"]);
  // Memory by arrow keys.
  await page.tabTo("#memory-picture .frame");
  await page.press("ArrowRight", 4);
  assert.match(await page.text("#tip"), /iB/);
  await look("keyboard-memory", "#tabs");
  await page.press("Escape");
  await page.until(`document.getElementById("tip").hidden`, "the tip goes");
  assert.match(await page.text("#memory-pinned"), /pp 1 → 2/);
  // Tabs by arrow keys: ownership, a rank and a tensor.
  await page.tabTo("[role=tab][aria-selected=true]", { back: true });
  await page.press("ArrowRight");
  await becomes(page, ["tab=ownership"]);
  await isDrawn(page, "#mesh-picture");
  await page.tabTo("#mesh-picture .frame");
  for (let at = 0; at < 40; at += 1) {
    await page.press("ArrowRight");
    if (await page.evaluate(`document.querySelector("#mesh-picture .here")?.dataset.rank === "3"`)) break;
  }
  await page.press("Enter");
  await becomes(page, ["rank=3"]);
  await page.until(`document.querySelector("#rank-panel h3")?.innerText.startsWith("Rank 3")`, "rank 3 is shown");
  await page.tabTo("#rank-panel tbody button");
  await page.press("Enter");
  await becomes(page, ["tensor="]);
  await page.until(`document.querySelectorAll("#holders tbody tr").length > 0`, "its holders are shown");
  // The schedule.
  await page.tabTo("[role=tab][aria-selected=true]", { back: true });
  await page.press("ArrowRight");
  await becomes(page, ["tab=time"]);
  await isDrawn(page, "#schedule-picture");
  await page.tabTo("#schedule-picture .frame");
  await page.press("ArrowRight", 3);
  assert.notEqual(await page.text("#tip"), "");
  // A search and a point.
  await page.tabTo("[role=tab][aria-selected=true]", { back: true });
  await page.press("ArrowRight");
  await becomes(page, ["tab=choose"]);
  await page.tabTo("#search");
  await page.press("Enter");
  await isDrawn(page, "#frontier-picture");
  const old = await hash(page);
  await page.tabTo("#frontier-picture .frame");
  for (let at = 0; at < 60; at += 1) {
    await page.press("ArrowRight");
    if (await page.evaluate(`document.querySelector("#frontier-picture .here")?.classList.contains("picks")`)) break;
  }
  await page.press("Enter");
  await page.until(`location.hash !== ${JSON.stringify(old)}`, "a point becomes the case");
  await page.settled();
  // What to run.
  await page.tabTo("[role=tab][aria-selected=true]", { back: true });
  await page.press("ArrowRight");
  await becomes(page, ["tab=launch"]);
  await page.until(`document.getElementById("zip")`, "a launch is there");
  await page.tabTo("#zip");
  await page.press("Enter");
  await arrived(downloads);
}

// The newest download once it is whole; each run has a folder of its own.
async function arrived(folder) {
  for (let at = 0; at < 200; at += 1) {
    const name = readdirSync(folder).find((file) => file.endsWith(".zip"));
    if (name && !readdirSync(folder).some((file) => file.endsWith(".crdownload"))) return name;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error("no zip arrived");
}

// Files of a stored zip by its directory, each held to its checksum.
function unzipped(bytes) {
  const end = bytes.lastIndexOf(Buffer.from([0x50, 0x4b, 5, 6]));
  const out = new Map();
  let at = bytes.readUInt32LE(end + 16);
  for (let left = bytes.readUInt16LE(end + 10); left > 0; left -= 1) {
    const [sum, size, named, mode, offset] = [
      bytes.readUInt32LE(at + 16),
      bytes.readUInt32LE(at + 24),
      bytes.readUInt16LE(at + 28),
      bytes.readUInt32LE(at + 38) >>> 16,
      bytes.readUInt32LE(at + 42),
    ];
    const name = bytes.subarray(at + 46, at + 46 + named).toString();
    const from = offset + 30 + bytes.readUInt16LE(offset + 26) + bytes.readUInt16LE(offset + 28);
    const data = bytes.subarray(from, from + size);
    assert.equal(crc32(data), sum, name);
    out.set(name, { text: data.toString(), mode });
    at += 46 + named + bytes.readUInt16LE(at + 30) + bytes.readUInt16LE(at + 32);
  }
  return out;
}
