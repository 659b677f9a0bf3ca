// Elements from data. Text from outside only ever becomes a text node.

// el("p", { class: "soft", onclick: f, "aria-label": "x" }, "text", child, [more])
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(3).filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

// What a box holds from now on; nothing is left out where there is nothing.
export function put(box, ...children) {
  box.replaceChildren(...children.flat(3).filter((child) => child !== undefined && child !== null && child !== false));
}

// A table that scrolls sideways inside itself where the screen is narrow. Columns: text, or { text, right: true }.
export function table(caption, columns, rows, attributes = {}) {
  const head = columns.map((column) =>
    el("th", { scope: "col", class: column.right ? "right" : undefined }, column.text ?? column),
  );
  const body = rows.map((row) => {
    const cells = row.cells ?? row;
    return el(
      "tr",
      row.attributes ?? {},
      cells.map((cell, at) => {
        const attributes = { class: columns[at]?.right ? "right" : undefined };
        return at === 0 && row.head !== false
          ? el("th", { ...attributes, scope: "row" }, cell)
          : el("td", attributes, cell);
      }),
    );
  });
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      attributes,
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, head)),
      el("tbody", {}, body),
    ),
  );
}

// Draws a box anew; what a reader has opened in it stays open.
export function redraw(box, draw) {
  const said = (details) => details.querySelector("summary")?.textContent;
  const open = new Set([...box.querySelectorAll("details[open]")].map(said));
  draw();
  for (const details of box.querySelectorAll("details")) if (open.has(said(details))) details.open = true;
}

// A part that opens; what it holds is made when it is opened first.
export function folded(summary, make, attributes = {}) {
  const node = el("details", attributes, el("summary", {}, summary));
  const fill = () => {
    if (node.open && node.childElementCount === 1) node.append(...[make()].flat());
  };
  node.addEventListener("toggle", fill);
  fill();
  return node;
}

// Backticks in our sentences are code.
export function sentence(text) {
  return String(text)
    .split(/`([^`]*)`/)
    .map((part, at) => (at % 2 ? el("code", {}, part) : part));
}

export function copyButton(text, label = "Copy") {
  const button = el("button", { type: "button", class: "small" }, label);
  button.addEventListener("click", async () => {
    const done = await copyText(typeof text === "function" ? await text() : text);
    button.textContent = done ? "Copied" : "Select and copy";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

// The clipboard is missing on pages that are not of this machine and not encrypted: then the old way.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "unseen", "aria-hidden": "true", value: text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// A command in a box, with a button that copies it.
export function command(text) {
  return el("div", { class: "command" }, el("code", { tabindex: "0" }, text), copyButton(text));
}

export function save(name, bytes, type) {
  const address = URL.createObjectURL(new Blob([bytes], { type }));
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
