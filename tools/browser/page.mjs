// One page as a person uses it: real pointer and key events, and everything that the browser complains about.

import { readFileSync, writeFileSync } from "node:fs";

const KEYS = {
  Tab: ["Tab", 9],
  Enter: ["Enter", 13, "\r"],
  Space: ["Space", 32, " "],
  Escape: ["Escape", 27],
  Home: ["Home", 36],
  ArrowLeft: ["ArrowLeft", 37],
  ArrowUp: ["ArrowUp", 38],
  ArrowRight: ["ArrowRight", 39],
  ArrowDown: ["ArrowDown", 40],
};

// The bit of the shift key in an event.
const SHIFT = 8;

// A refused case is an answer, and a search may end between asking how far it is and hearing so: no fault of the page.
const isAnswer = ({ source, text, url }) =>
  source === "network" &&
  (text.includes("status of 422") || (text.includes("status of 404") && url?.includes("/jobs/")));

export class Page {
  complaints = [];

  static async open(chromium, { width, height, dark = false, downloads }) {
    const { targetId } = await chromium.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await chromium.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page();
    Object.assign(page, { chromium, targetId, sessionId, width });
    chromium.listen((message) => message.sessionId === sessionId && page.#heard(message));
    for (const domain of ["Page", "Runtime", "Log", "DOM"]) await page.send(`${domain}.enable`);
    await page.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 });
    const features = [
      { name: "prefers-color-scheme", value: dark ? "dark" : "light" },
      { name: "prefers-reduced-motion", value: "reduce" },
    ];
    await page.send("Emulation.setEmulatedMedia", { features });
    if (downloads)
      await chromium.send("Browser.setDownloadBehavior", {
        behavior: "allow",
        downloadPath: downloads,
        eventsEnabled: true,
      });
    return page;
  }

  send(method, params) {
    return this.chromium.send(method, params, this.sessionId);
  }

  #heard({ method, params }) {
    if (method === "Runtime.exceptionThrown")
      this.complaints.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Runtime.consoleAPICalled" && ["error", "warning"].includes(params.type)) {
      this.complaints.push(`console ${params.type}: ${params.args.map((a) => a.value ?? a.description).join(" ")}`);
    }
    if (method === "Log.entryAdded" && ["error", "warning"].includes(params.entry.level) && !isAnswer(params.entry)) {
      this.complaints.push(
        `${params.entry.source} ${params.entry.level}: ${params.entry.text} ${params.entry.url ?? ""}`,
      );
    }
  }

  async evaluate(code) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", {
      expression: code,
      awaitPromise: true,
      returnByValue: true,
    });
    if (exceptionDetails)
      throw new Error(`${code.slice(0, 200)}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  // Waits until code comes to something true, and gives it.
  async until(code, what, seconds = 30) {
    const end = Date.now() + seconds * 1000;
    for (;;) {
      const value = await this.evaluate(code);
      if (value) return value;
      if (Date.now() > end) throw new Error(`never happened: ${what ?? code}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  async go(address) {
    await this.send("Page.navigate", { url: address });
    await this.settled();
  }

  // The answer to the address is there, and every picture of it.
  settled() {
    return this.until(
      `document.getElementById("answer")?.dataset.shown === location.hash && !document.querySelector("[aria-busy=true]")`,
      "the page has its answer",
    );
  }

  text(selector) {
    return this.evaluate(`document.querySelector(${JSON.stringify(selector)})?.innerText ?? ""`);
  }

  // The middle of an element, scrolled into sight, once it no longer moves.
  async #middle(selector) {
    const code = `(() => { const e = document.querySelector(${JSON.stringify(selector)}); if (!e) return null;
      e.scrollIntoView({ block: "center", inline: "center" }); const r = e.getBoundingClientRect();
      return r.width ? [r.x + r.width / 2, r.y + r.height / 2] : null; })()`;
    let before = [];
    for (;;) {
      const [x, y] = await this.until(code, `${selector} is in sight`);
      if (x === before[0] && y === before[1]) return { x, y };
      before = [x, y];
      await new Promise((resolve) => setTimeout(resolve, 60));
    }
  }

  async hover(selector) {
    await this.send("Input.dispatchMouseEvent", { type: "mouseMoved", ...(await this.#middle(selector)) });
  }

  async click(selector) {
    const at = await this.#middle(selector);
    await this.send("Input.dispatchMouseEvent", { type: "mouseMoved", ...at });
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.send("Input.dispatchMouseEvent", { type, ...at, button: "left", clickCount: 1 });
    }
  }

  async press(key, times = 1, modifiers = 0) {
    const [code, number, text] = KEYS[key];
    for (let at = 0; at < times; at += 1) {
      const event = { key: text === " " ? " " : key, code, windowsVirtualKeyCode: number, modifiers };
      await this.send("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", text, ...event });
      await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event });
    }
  }

  async choose(selector, value) {
    await this.evaluate(
      `(() => { const e = document.querySelector(${JSON.stringify(selector)}); e.value = ${JSON.stringify(value)}; e.dispatchEvent(new Event("change", { bubbles: true })); })()`,
    );
  }

  // Drags a file from outside over the middle of the page and lets it fall.
  async drop(path) {
    const data = { items: [], files: [path], dragOperationsMask: 1 };
    const at = { x: Math.round(this.width / 2), y: 300 };
    // A drop counts once the page has said, while the file was over it, that it may fall.
    await this.send("Input.dispatchDragEvent", { type: "dragEnter", ...at, data });
    await this.until(`!document.getElementById("drop").hidden`, "the page says that a file may fall");
    for (let over = 0; over < 3; over += 1) {
      await this.send("Input.dispatchDragEvent", { type: "dragOver", ...at, data });
      await new Promise((resolve) => setTimeout(resolve, 60));
    }
    await this.send("Input.dispatchDragEvent", { type: "drop", ...at, data });
  }

  // Tabs, or goes back, until the focused element is one that the selector names.
  async tabTo(selector, { back = false } = {}) {
    for (let at = 0; at < 300; at += 1) {
      if (await this.evaluate(`document.activeElement.matches(${JSON.stringify(selector)})`)) return;
      await this.press("Tab", 1, back ? SHIFT : 0);
    }
    throw new Error(`${selector} cannot be reached by Tab`);
  }

  // Letters one by one, as a list finds its lines by them.
  async spell(text) {
    for (const letter of text) {
      await this.send("Input.dispatchKeyEvent", { type: "keyDown", key: letter, text: letter });
      await this.send("Input.dispatchKeyEvent", { type: "keyUp", key: letter });
    }
  }

  async shot(path, whole = false) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png", captureBeyondViewport: whole });
    writeFileSync(path, Buffer.from(data, "base64"));
  }

  // What axe finds that keeps people out.
  async barriers(axe) {
    if (!(await this.evaluate("typeof axe === 'object'"))) await this.evaluate(`${readFileSync(axe, "utf8")}; true`);
    const found = await this.evaluate(`axe.run(document, { resultTypes: ["violations"] }).then((r) => r.violations
      .filter((v) => ["serious", "critical"].includes(v.impact))
      .map((v) => v.id + " (" + v.impact + "): " + v.nodes.slice(0, 4).map((n) => n.target.join(" ") + " " + (n.any[0]?.message ?? "")).join(" | ")))`);
    return found;
  }

  // Anything wider than the screen, which would make the whole page scroll sideways.
  overflow() {
    return this.evaluate(
      `document.documentElement.scrollWidth > innerWidth + 1 ? [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, .frame, pre, [role=tablist], .sheet")).slice(0, 5).map((e) => e.tagName + "#" + e.id + "." + e.className) : []`,
    );
  }

  close() {
    return this.chromium.send("Target.closeTarget", { targetId: this.targetId });
  }
}
