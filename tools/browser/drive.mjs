// Walks through the page in Chromium and fails on anything that it, its policy or axe complains about.
// usage: node drive.mjs ADDRESS CHROMIUM AXE OUT [SHOTS]     SHOTS: a folder for the pictures that the docs show

import { copyFileSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Chromium } from "./chromium.mjs";
import { Page } from "./page.mjs";
import { byKeyboard, byPointer, fromDisk, inTheDark } from "./journeys.mjs";

const [, , address, program, axe, out, shots] = process.argv;
const report = pathToFileURL(join(out, "report.html")).href;
const folder = dirname(fileURLToPath(import.meta.url));
const wrong = [];

// Pictures for the docs, by journey and place.
const KEPT = {
  "wide-memory": "page-memory.png",
  "wide-ownership": "page-ownership.png",
  "wide-time": "page-time.png",
  "dark-choose": "page-choose-dark.png",
  "narrow-pinned": "page-narrow.png",
};

async function walk(name, journey, screen) {
  const began = Date.now();
  const chromium = new Chromium(program);
  const downloads = join(out, `${name}-downloads`);
  mkdirSync(downloads, { recursive: true });
  const page = await Page.open(chromium, { ...screen, downloads });
  // `at`: what stands at the top of the picture; else the page's own top.
  const look = async (place, at = "body") => {
    await page.evaluate(`document.querySelector(${JSON.stringify(at)}).scrollIntoView({ block: "start" })`);
    const path = join(out, `${name}-${place}.png`);
    await page.shot(path);
    if (shots && KEPT[`${name}-${place}`]) copyFileSync(path, join(shots, KEPT[`${name}-${place}`]));
    for (const barrier of await page.barriers(axe)) wrong.push(`${name}, ${place}: ${barrier}`);
    for (const wide of await page.overflow()) wrong.push(`${name}, ${place}: wider than the screen: ${wide}`);
  };
  try {
    await journey(page, { address, report, folder, downloads, look });
  } catch (error) {
    await page.shot(join(out, `${name}-failed.png`)).catch(() => null);
    wrong.push(`${name}: ${error.stack}`);
  }
  for (const complaint of page.complaints) wrong.push(`${name}: ${complaint}`);
  await chromium.close();
  console.log(`${name}: ${((Date.now() - began) / 1000).toFixed(1)} s`);
}

const only = process.env.ONLY?.split(",");
const walks = {
  wide: [byPointer, { width: 1280, height: 800 }],
  narrow: [byPointer, { width: 390, height: 844 }],
  dark: [inTheDark, { width: 1280, height: 800, dark: true }],
  disk: [fromDisk, { width: 1280, height: 800 }],
  pocket: [fromDisk, { width: 390, height: 844 }],
  keys: [byKeyboard, { width: 1280, height: 800 }],
};
for (const [name, [journey, screen]] of Object.entries(walks)) {
  if (!only || only.includes(name)) await walk(name, journey, screen);
}
for (const line of wrong) console.error(line);
process.exit(wrong.length ? 1 : 0);
