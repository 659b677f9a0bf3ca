// Pictures come as SVG from the server and are made alive here: tips under the pointer and by arrow keys, and picking.

import { el, put } from "./dom.js";
import { drawn } from "./ask.js";
import { findingsList } from "./findings.js";

// Below this a picture is drawn for a narrow screen.
const NARROW = 620;

// Puts a picture into a box, and again when the box grows narrow or wide. `pick` gets the element's data.
export async function showPicture(box, name, body, { label, pick, zoom } = {}) {
  const narrow = box.clientWidth > 0 ? box.clientWidth < NARROW : innerWidth < NARROW;
  const asked = JSON.stringify([name, body, narrow]);
  if (box.dataset.asked === asked) return;
  box.dataset.asked = asked;
  box.setAttribute("aria-busy", "true");
  const how = narrow ? { ...body, narrow: true } : body;
  const answer = await drawn(name, how);
  if (box.dataset.asked !== asked) return;
  box.removeAttribute("aria-busy");
  if (!answer.svg) {
    put(box, findingsList(answer.findings));
    return;
  }
  const svg = parsed(answer.svg);
  if (!svg) {
    put(box, el("p", {}, "This picture could not be read."));
    return;
  }
  // Wider, with texts as large; in a report, where nobody draws, the same picture stretched.
  const wider = async (times) => {
    const { svg: text } = times === 1 ? answer : await drawn(name, { ...how, zoom: times });
    return text ? parsed(text) : null;
  };
  put(box, alive(svg, label, pick, zoom ? wider : null));
}

// Whatever a picture holds besides shapes and texts is left out, though we drew it ourselves.
function parsed(text) {
  const read = new DOMParser().parseFromString(text, "image/svg+xml");
  const svg = read.documentElement;
  if (svg.localName !== "svg" || read.querySelector("parsererror")) return null;
  for (const node of svg.querySelectorAll("script, foreignObject, a, use, image, style")) node.remove();
  for (const node of [svg, ...svg.querySelectorAll("*")]) {
    for (const { name } of [...node.attributes])
      if (name.startsWith("on") || name === "style") node.removeAttribute(name);
  }
  return document.importNode(svg, true);
}

function alive(first, label, pick, wider) {
  const said = label ?? first.querySelector("title")?.textContent ?? "picture";
  const frame = el("div", {
    class: "frame",
    tabindex: "0",
    role: "group",
    "aria-label": `${said}; arrow keys read its parts`,
  });
  const picks = (mark) => pick && (pick.accepts ?? (() => true))(mark.dataset);
  let marks = [];
  let here = -1;
  const hold = (svg) => {
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    // A browser would show the title over our own tips.
    const texts = [svg.querySelector("title"), svg.querySelector("desc")];
    svg.setAttribute("aria-label", texts.map((node) => node?.textContent ?? "").join(". "));
    texts[0]?.remove();
    marks = [...svg.querySelectorAll("[data-tip]")];
    for (const mark of marks) if (picks(mark)) mark.classList.add("picks");
    here = -1;
    put(frame, svg);
  };
  hold(first);
  const go = (to) => {
    marks[here]?.classList.remove("here");
    here = Math.max(0, Math.min(marks.length - 1, to));
    marks[here].classList.add("here");
    tip(marks[here], null);
  };
  const found = (event) => event.target.closest?.("[data-tip]");
  frame.addEventListener("pointermove", (event) => (found(event) ? tip(found(event), event) : hideTip()));
  frame.addEventListener("pointerleave", hideTip);
  frame.addEventListener("click", (event) => {
    const mark = found(event);
    if (mark && picks(mark)) pick(mark.dataset);
  });
  frame.addEventListener("blur", () => {
    marks[here]?.classList.remove("here");
    hideTip();
  });
  frame.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in moves && marks.length) go(here + moves[event.key]);
    else if (event.key === "Home" && marks.length) go(0);
    else if (event.key === "End" && marks.length) go(marks.length - 1);
    else if (event.key === "Escape") hideTip();
    else if ((event.key === "Enter" || event.key === " ") && marks[here] && picks(marks[here]))
      pick(marks[here].dataset);
    else return;
    event.preventDefault();
  });
  return wider ? zoomed(frame, hold, wider) : frame;
}

// Wider than the screen, and scrolled: buttons, + and - keys, and ctrl with the wheel.
function zoomed(frame, hold, wider) {
  let times = 1;
  const shown = el("output", { class: "soft" }, "100%");
  const set = async (to) => {
    const mine = (times = Math.max(1, Math.min(16, to)));
    shown.textContent = `${times * 100}%`;
    const svg = await wider(times);
    if (mine !== times) return;
    const middle = (frame.scrollLeft + frame.clientWidth / 2) / frame.scrollWidth;
    if (svg) hold(svg);
    frame.firstElementChild.style.width = `${times * 100}%`;
    frame.scrollLeft = middle * frame.scrollWidth - frame.clientWidth / 2;
  };
  frame.classList.add("zooms");
  frame.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      set(event.deltaY < 0 ? times * 2 : times / 2);
    },
    { passive: false },
  );
  frame.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "=") set(times * 2);
    else if (event.key === "-") set(times / 2);
    else if (event.key === "0") set(1);
  });
  const button = (text, label, run) =>
    el("button", { type: "button", class: "small", "aria-label": label, onclick: run }, text);
  const tools = el(
    "div",
    { class: "tools", role: "group", "aria-label": "Zoom" },
    button("−", "Zoom out", () => set(times / 2)),
    shown,
    button("+", "Zoom in", () => set(times * 2)),
    button("Whole", "Show the whole step", () => set(1)),
  );
  return el("div", {}, tools, frame);
}

// The one tip of the page; it is also what a screen reader hears.
function tip(mark, event) {
  const box = document.getElementById("tip");
  put(box, ...mark.dataset.tip.split("\n").map((line, at) => el(at ? "div" : "strong", {}, line)));
  box.hidden = false;
  const at = event ? { x: event.clientX, y: event.clientY } : corner(mark);
  const { width, height } = box.getBoundingClientRect();
  const x = Math.min(at.x + 14, innerWidth - width - 8);
  const y = at.y + 18 + height > innerHeight ? at.y - height - 10 : at.y + 18;
  box.style.left = `${Math.max(8, x)}px`;
  box.style.top = `${Math.max(8, y)}px`;
}

function corner(mark) {
  mark.scrollIntoView({ block: "nearest", inline: "nearest" });
  const { left, bottom, width } = mark.getBoundingClientRect();
  return { x: left + width / 2, y: bottom };
}

export function hideTip() {
  document.getElementById("tip").hidden = true;
}
