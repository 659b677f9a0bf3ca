// Questions to the server, in the words of the command line; or, in a report, to the answers that it holds.

const REMEMBERED = 200;
const answers = new Map();
const embedded = readEmbedded();

// A report says which case it is of, and holds answers by question: "fit", "splits?rank=3", "draw/memory?narrow".
function readEmbedded() {
  const node = document.getElementById("answers");
  return node ? JSON.parse(node.textContent) : null;
}

// Whether a question can be answered here at all.
export function canAsk(question) {
  return !embedded || Object.keys(embedded.answers).some((key) => key === question || key.startsWith(`${question}?`));
}

export function report() {
  return embedded;
}

// What a question came to: { ok, fits, json, findings, stopped }.
export async function ask(question, body, { signal, job } = {}) {
  if (embedded) return fromReport(question, body);
  const key = `${question} ${JSON.stringify(body)}`;
  const known = answers.get(key);
  if (known) return known;
  let response;
  try {
    const headers = { "content-type": "application/json" };
    if (job) headers["x-job"] = job;
    response = await fetch(`/api/v1/${question}`, { method: "POST", headers, body: JSON.stringify(body), signal });
    const answer = await read(response);
    if (response.ok || response.status === 422) remember(key, answer);
    return answer;
  } catch (error) {
    if (error.name === "AbortError") return { ok: false, stopped: true, findings: [] };
    return refusal("page/server", "the server does not answer", "is `shardwright serve` still running?");
  }
}

async function read(response) {
  const json = await response.json().catch(() => null);
  if (json === null) return refusal("page/answer", `the server answered ${response.status} without JSON`);
  const findings = json.findings ?? [];
  if (!response.ok && findings.length === 0) return refusal("page/answer", `the server answered ${response.status}`);
  return { ok: response.ok, json, findings };
}

function refusal(rule, message, hint) {
  return { ok: false, json: null, findings: [{ rule, severity: "error", message, hint }] };
}

function remember(key, answer) {
  if (answers.size >= REMEMBERED) answers.delete(answers.keys().next().value);
  answers.set(key, answer);
}

// Receipts and the like change while the page is open.
export function forget(question) {
  for (const key of answers.keys()) if (key.startsWith(`${question} `)) answers.delete(key);
}

// A picture as SVG text, or null with findings.
export async function drawn(picture, body) {
  if (embedded) {
    const svg = fromReport(`draw/${picture}`, body);
    return svg.ok ? { svg: svg.json } : svg;
  }
  const key = `draw/${picture} ${JSON.stringify(body)}`;
  const known = answers.get(key);
  if (known) return known;
  try {
    const headers = { "content-type": "application/json" };
    const response = await fetch(`/api/v1/draw/${picture}`, { method: "POST", headers, body: JSON.stringify(body) });
    if (!response.ok) return await read(response);
    const answer = { ok: true, svg: await response.text() };
    remember(key, answer);
    return answer;
  } catch {
    return refusal("page/server", "the server does not answer", "is `shardwright serve` still running?");
  }
}

// Keys that tell answers of one case apart; all others are the case's own.
const APART = ["rank", "tensor", "narrow", "stage", "against", "receipt", "receipts", "name"];

function keyInReport(question, body, keys) {
  const more = keys.filter((key) => body[key] !== undefined && body[key] !== false);
  const said = more.map((key) => `${key}=${typeof body[key] === "object" ? JSON.stringify(body[key]) : body[key]}`);
  return said.length ? `${question}?${said.join("&")}` : question;
}

function fromReport(question, body) {
  // A picture of another stage or for another width says more than none.
  const tries = question.startsWith("draw/") && !body.against ? [APART, ["narrow"], ["stage"], []] : [APART];
  for (const keys of tries) {
    const found = embedded.answers[keyInReport(question, body, keys)];
    if (found !== undefined) return { ok: true, json: found, findings: found.findings ?? [] };
  }
  return refusal("page/report", "this report does not hold that answer", "`shardwright serve` answers it");
}

export async function progress(job) {
  const response = await fetch(`/api/v1/jobs/${job}`).catch(() => null);
  return response?.ok ? response.json() : null;
}

export async function stop(job) {
  await fetch(`/api/v1/jobs/${job}`, { method: "DELETE" }).catch(() => null);
}
