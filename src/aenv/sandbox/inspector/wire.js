// Everything that knows the server's routes: reading the environment, making one call, and saying a call as curl or Python.

/** The environment's address: the page lives one level below it, also behind a proxy that adds a prefix. */
const ROOT = new URL("..", import.meta.url).href.slice(0, -1);
const BODY_METHODS = ["POST", "PUT", "PATCH"];
/** Beyond this, exact numbers are not worth the time that a reviver takes. */
const EXACT_LIMIT = 1_000_000;

async function get(path) {
  const response = await fetch(ROOT + path, { headers: { Accept: "application/json" }, cache: "no-store" });
  const envelope = await response.json();
  if (!response.ok) throw new Error(envelope.error ?? `${path} answered ${response.status}`);
  return envelope.data;
}

/** The environment and all that can be called in it, as items of one shape. */
export async function readEnvironment() {
  const [about, { tools }, listed] = await Promise.all([get("/"), get("/tools"), get("/functions/list")]);
  const fromFunction = (kind) => (f) => ({
    kind, name: f.name, description: f.description, method: f.method, endpoint: f.endpoint,
    schema: f.input_schema ?? {}, isDefault: f.default === true,
  });
  const fromTool = (t) => ({
    kind: "tool", name: t.name, title: t.title ?? t.annotations?.title, description: t.description, method: "POST",
    endpoint: `/tools/${encodeURIComponent(t.name)}`, schema: t.inputSchema ?? {}, outputSchema: t.outputSchema,
    annotations: t.annotations,
  });
  const items = [
    ...tools.map(fromTool),
    ...listed.reward.map(fromFunction("reward")),
    ...listed.functions.map(fromFunction("function")),
    ...listed.health.map(fromFunction("health")),
  ];
  for (const item of items) item.key = `${item.kind}/${encodeURIComponent(item.name)}`;
  return { about, items };
}

/** "healthy", "unhealthy" with the server's sentence, or "unreachable"; and when the server started. */
export async function readHealth() {
  try {
    const asked = fetch(`${ROOT}/health`, { cache: "no-store", signal: AbortSignal.timeout(15_000) });
    const [response, about] = await Promise.all([asked, get("/")]);
    const { error } = await response.json();
    return { state: response.ok ? "healthy" : "unhealthy", why: error ?? "", startedAt: about.started_at ?? 0 };
  } catch {
    return { state: "unreachable", why: "" };
  }
}

export function newCallId() {
  // crypto.randomUUID is missing outside secure contexts; getRandomValues is not.
  const bytes = crypto.getRandomValues(new Uint8Array(10));
  return `call_${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Parse JSON and keep every number as it is written: 1.0 stays 1.0 and 2**64 keeps its last digit. */
export function parseExact(text) {
  if (!JSON.rawJSON || text.length > EXACT_LIMIT) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context.source !== String(value) ? JSON.rawJSON(context.source) : value);
}

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** Method, path and body of a call. Path segments are filled first; what is left is the body, or the query of a GET. */
export function requestOf(item, args) {
  const rest = { ...args };
  let path = item.endpoint.replace(/\{(\w+)\}/g, (_, name) => {
    const value = rest[name] ?? "";
    delete rest[name];
    return encodeURIComponent(asText(value));
  });
  if (BODY_METHODS.includes(item.method)) return { method: item.method, path, body: JSON.stringify(rest) };
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(rest)) {
    if (value !== null) query.append(name, asText(value)); // a query has no null: left out is the nearest
  }
  if (query.size) path += `?${query}`;
  return { method: item.method, path };
}

/** One call, to its end: {status, text, bytes, ms}, or {failure, ms} when no answer came. */
export async function send(item, args, callId, signal) {
  const { method, path, body } = requestOf(item, args);
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["Idempotency-Key"] = callId;
  const began = performance.now();
  const took = () => performance.now() - began;
  try {
    const response = await fetch(ROOT + path, { method, headers, body, signal, cache: "no-store" });
    const buffer = await response.arrayBuffer();
    const ms = took();
    return { status: response.status, text: new TextDecoder().decode(buffer), bytes: buffer.byteLength, ms };
  } catch (error) {
    return { failure: signal.aborted ? "cancelled" : "unanswered", reason: error.message, ms: took() };
  }
}

const quoteShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(item, args) {
  const { method, path, body } = requestOf(item, args);
  const words = ["curl -sS", method === "GET" ? "" : `-X ${method}`, quoteShell(ROOT + path)];
  if (body !== undefined) words.push("-H 'Content-Type: application/json'", "-d", quoteShell(body));
  return words.filter(Boolean).join(" ");
}

/** The SDK's line for this call; null where the SDK has no word for it. */
export function asPython(item, args) {
  const name = JSON.stringify(item.name);
  if (item.kind === "tool") return `await env.call_tool(${name}, ${python(args)})`;
  if (item.kind === "function") return `await env.call_function(${name}, ${python(args)})`;
  if (item.kind === "reward" && item.isDefault) return `await env.call_reward(${python(args)})`;
  return null;
}

function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object" || JSON.isRawJSON?.(value)) return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${python(each)}`).join(", ")}}`;
}
