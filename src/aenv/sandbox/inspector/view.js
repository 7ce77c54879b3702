// What is shown of an item, of a call's outcome and of the history. Knows nothing of where things come from.

import { copy, download, el } from "./dom.js";
import { parseExact } from "./wire.js";

/** Characters of one result put on the page; a browser lays this much text out at once without a stutter. */
const SHOWN = 100_000;
const COLOURED = 20_000;
const CONTENT_TYPES = ["text", "image", "audio", "resource", "resource_link"];
const HINTS = [
  ["readOnlyHint", "read-only"],
  ["destructiveHint", "destructive", "warn"],
  ["idempotentHint", "idempotent"],
  ["openWorldHint", "open world"],
];

export const milliseconds = (ms) => (ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms).toLocaleString("en")} ms`);

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

const badge = (text, tone) => el("span", { class: "badge", "data-tone": tone }, text);

/** Name, badges, description and schemas of one item. */
export function headOf(item) {
  const hints = HINTS.filter(([hint]) => item.annotations?.[hint] === true);
  return [
    el("div", { class: "title" },
      el("h2", { id: "subject-name" }, item.name),
      item.title && item.title !== item.name ? el("span", { class: "muted" }, item.title) : null,
      badge(item.kind, "kind"),
      item.isDefault ? badge("default") : null,
      ...hints.map(([, words, tone]) => badge(words, tone))),
    el("code", { class: "route" }, `${item.method} ${item.endpoint}`),
    item.description ? el("p", { class: "text" }, item.description) : null,
    el("div", { class: "schemas" },
      folded("Input schema", () => jsonBlock(item.schema)),
      item.outputSchema ? folded("Output schema", () => jsonBlock(item.outputSchema)) : null),
  ];
}

/** A disclosure whose content is made when it is first opened. */
function folded(title, content, open = false) {
  const details = el("details", {}, el("summary", {}, title));
  details.addEventListener("toggle", () => details.append(content()), { once: true });
  details.open = open;
  return details;
}

const jsonBlock = (value) => jsonText(JSON.stringify(value, null, 2).slice(0, SHOWN));

function jsonText(text) {
  const block = el("pre", { class: "code", tabindex: "0" });
  let end = 0;
  if (text.length <= COLOURED) {
    for (const match of text.matchAll(/("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\d[\d.eE+-]*/g)) {
      const tone = match[2] ? "key" : match[1] ? "string" : "literal";
      block.append(text.slice(end, match.index), el("span", { class: tone }, match[1] ?? match[0]), match[2] ?? "");
      end = match.index + match[0].length;
    }
  }
  block.append(text.slice(end));
  return block;
}

/** Text of any length: as much as the page can take, with ways to have it all. */
function longText(text, name, type = "text/plain") {
  const isJson = type === "application/json";
  const shown = text.slice(0, SHOWN);
  const count = (string) => string.length.toLocaleString("en");
  const save = () => download(text, `${name}.${isJson ? "json" : "txt"}`, type);
  return el("div", { class: "output" },
    shown === text ? null : el("p", { class: "notice" }, `The first ${count(shown)} of ${count(text)} characters are shown.`),
    isJson ? jsonText(shown) : el("pre", { tabindex: "0" }, shown),
    el("div", { class: "actions" },
      el("button", { type: "button", class: "link", onclick: () => copy(text) }, "Copy"),
      el("button", { type: "button", class: "link", onclick: save }, "Download")));
}

const longJson = (value, name) => longText(JSON.stringify(value, null, 2), name, "application/json");

function valueBlocks(value, name) {
  if (value === "") return [el("p", { class: "muted" }, "An empty text.")];
  if (typeof value === "string") return [longText(value, name)];
  const parts = value?.content;
  const isContent = Array.isArray(parts) && parts.length && parts.every((part) => CONTENT_TYPES.includes(part?.type));
  return isContent ? parts.map((part) => contentBlock(part, name)) : [longJson(value, name)];
}

function contentBlock(part, name) {
  const { type, data, mimeType } = part;
  if (type === "text") return longText(part.text, name);
  if (type !== "image" && type !== "audio") return longJson(part, name);
  const src = `data:${mimeType};base64,${data}`;
  return el("figure", {},
    type === "image" ? el("img", { src, alt: `Image returned by ${name}` }) : el("audio", { src, controls: true }),
    el("figcaption", { class: "muted" }, `${mimeType}, ${size(Math.floor((data.length * 3) / 4))}`));
}

function errorBlock({ error, code, hint, retryable, details }) {
  const { fields = [], traceback, type, ...rest } = details ?? {};
  const trace = [traceback ?? []].flat().map((line) => `${line}`.replace(/\n$/, "")).join("\n").slice(0, SHOWN);
  const complaints = fields.map(({ field, message }) => el("li", {}, el("code", {}, field), " ", message));
  return el("div", { class: "failure" },
    el("p", { class: "sentence" }, error ?? "the call failed"),
    el("p", { class: "badges" },
      code ? badge(code, "bad") : null, type ? badge(type) : null, retryable ? badge("retryable") : null),
    hint ? el("p", { class: "hint" }, el("strong", {}, "hint: "), hint) : null,
    complaints.length ? el("ul", { class: "complaints" }, ...complaints) : null,
    trace ? folded("Traceback", () => el("pre", { tabindex: "0" }, trace), true) : null,
    Object.keys(rest).length ? folded("Details", () => jsonBlock(rest)) : null);
}

/** The reply's envelope; a reply that is no envelope is a success or failure with its text as data. */
export function envelopeOf({ status, text }) {
  try {
    const envelope = parseExact(text);
    if (typeof envelope?.success === "boolean") return envelope;
  } catch {
    // Not JSON: shown as the text it is.
  }
  return status < 400 ? { success: true, data: text } : { success: false, error: text };
}

const FAILURES = {
  cancelled: { error: "cancelled here before the answer came", hint: "the environment may have finished all the same" },
  unanswered: { error: "no answer from the server", hint: "if it restarts, this page reconnects by itself; then call again" },
  forgotten: { error: "this reply is no longer held", hint: "the arguments are back: call again" },
};

/** Status line and body of one call that has ended. */
export function outcomeOf({ item, reply, callId, isOk }) {
  const status = reply.status ? `HTTP ${reply.status}` : reply.failure;
  const meta = [badge(status, isOk ? "good" : "bad"), el("span", {}, milliseconds(reply.ms))];
  if (reply.bytes !== undefined) meta.push(el("span", {}, size(reply.bytes)));
  const id = item.method === "GET" ? null : el("p", { class: "call-id muted" }, "call id ", el("code", {}, callId));
  if (reply.failure) return { meta, body: [errorBlock(FAILURES[reply.failure]), id] };
  const envelope = envelopeOf(reply);
  const blocks = envelope.success ? valueBlocks(envelope.data, item.name) : [errorBlock(envelope)];
  return { meta, body: [...blocks, folded("Raw reply", () => longText(reply.text, `${item.name}-reply`)), id] };
}
