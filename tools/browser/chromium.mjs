// Chromium without a window, told what to do over a pipe in its DevTools protocol. No package is needed for it.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PATIENCE = 20_000;

export class Chromium {
  #waiting = new Map();
  #listeners = [];
  #next = 1;

  constructor(program) {
    this.profile = mkdtempSync(join(tmpdir(), "shardwright-browser-"));
    const words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"];
    words.push(
      "--no-first-run",
      "--disable-extensions",
      "--disable-background-networking",
      "--force-color-profile=srgb",
    );
    words.push("--remote-debugging-pipe", `--user-data-dir=${this.profile}`, "about:blank");
    this.process = spawn(program, words, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    this.process.on("exit", () => this.#waiting.forEach(({ reject }) => reject(new Error("Chromium ended"))));
    let rest = "";
    this.process.stdio[4].setEncoding("utf8").on("data", (text) => {
      const parts = (rest + text).split("\0");
      rest = parts.pop();
      for (const part of parts) this.#read(JSON.parse(part));
    });
  }

  #read(message) {
    const waiting = this.#waiting.get(message.id);
    if (!waiting) return this.#listeners.forEach((listener) => listener(message));
    this.#waiting.delete(message.id);
    if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`));
    else waiting.resolve(message.result);
  }

  listen(listener) {
    this.#listeners.push(listener);
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.#next++;
    this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`${method} took too long`)), PATIENCE);
      const settle = (end) => (value) => (clearTimeout(late), end(value));
      this.#waiting.set(id, { method, resolve: settle(resolve), reject: settle(reject) });
    });
  }

  async close() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill();
    await ended;
    // Its helpers may write for a moment after it has gone; a folder left in the temporary place fails no walk.
    try {
      rmSync(this.profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 200 });
    } catch (error) {
      if (error.code !== "ENOTEMPTY" && error.code !== "EBUSY") throw error;
    }
  }
}
