// The inspector: one page to read and call whatever an environment offers. Here lives the state of the page.

import { $, copy, el, flag, toast } from "./dom.js";
import { createEditor } from "./form.js";
import { envelopeOf, headOf, milliseconds, outcomeOf } from "./view.js";
import { asCurl, asPython, newCallId, readEnvironment, readHealth, send } from "./wire.js";

const POLL_MS = 5000;
const POLL_WHILE_AWAY_MS = 1000;
const HISTORY_LENGTH = 100;
/** Characters of earlier replies that the history holds; older ones beyond it are let go. */
const HISTORY_TEXT = 32_000_000;
const GROUPS = [["tool", "Tools"], ["reward", "Rewards"], ["function", "Functions"], ["health", "Health"]];

let items = [];
let selected = null;
let calls = [];
let health = "unknown";
/** The start of the server whose environment is on the page; null when it has to be read. */
let startedAt = null;
let looking = null;
let timer = 0;
/** By item key: its editor, and the call whose outcome is shown with it. */
const editors = new Map();
const shown = new Map();

function editorOf(item) {
  if (!editors.has(item.key)) editors.set(item.key, createEditor(item.schema));
  return editors.get(item.key);
}

function drawItems() {
  const wanted = $("search").value.trim().toLowerCase();
  const matches = (item) => [item.name, item.title, item.description].some((text) => text?.toLowerCase().includes(wanted));
  const groups = GROUPS.flatMap(([kind, title]) => {
    const all = items.filter((item) => item.kind === kind);
    const found = all.filter(matches);
    const count = wanted ? `${found.length} of ${all.length}` : all.length;
    if (!found.length) return [];
    return [el("h2", {}, title, el("span", { class: "count" }, count)), el("ul", {}, ...found.map(itemLink))];
  });
  const nothing = el("p", { class: "muted empty" }, items.length ? "Nothing matches." : "Nothing is registered yet.");
  $("items").replaceChildren(...(groups.length ? groups : [nothing]));
  markSelected();
}

function itemLink({ key, name, description }) {
  const summary = description?.trim().split("\n")[0];
  return el("li", {}, el("a", { href: `#${key}` },
    el("span", { class: "name" }, name), summary ? el("span", { class: "summary" }, summary) : null));
}

function markSelected() {
  for (const link of $("items").querySelectorAll("a")) flag(link, "aria-current", link.hash === `#${selected?.key}`);
}

function drawSubject() {
  const key = location.hash.slice(1);
  selected = (key ? items.find((item) => item.key === key) : items[0]) ?? null;
  browse(false);
  markSelected();
  $("subject").hidden = !selected;
  $("nothing").hidden = Boolean(selected);
  $("nothing").textContent = items.length
    ? "The environment offers nothing by this name now. If it is being edited, it may come back."
    : "This environment registers nothing yet. Decorate a function with @register_tool, save, and it appears here.";
  if (!selected) return;
  $("head").replaceChildren(...headOf(selected).filter(Boolean));
  $("copy-python").hidden = asPython(selected, {}) === null;
  drawEditor();
  drawOutcome();
}

function drawEditor() {
  const editor = editorOf(selected);
  if ($("editor").firstChild !== editor.element) $("editor").replaceChildren(editor.element);
  for (const mode of ["form", "json"]) $(`mode-${mode}`).setAttribute("aria-pressed", editor.mode === mode);
}

function drawOutcome() {
  const call = shown.get(selected.key);
  const isRunning = Boolean(call && !call.reply);
  flag($("call"), "aria-disabled", isRunning); // not `disabled`, which would take the focus away
  $("cancel").hidden = !isRunning;
  $("result").setAttribute("aria-busy", isRunning);
  const waiting = el("p", { class: "muted empty" }, isRunning ? "Waiting for the answer." : "Nothing called yet.");
  const { meta, body } = call?.reply ? outcomeOf(call) : { meta: isRunning ? ["running"] : [], body: [waiting] };
  $("meta").replaceChildren(...meta.flatMap((part) => [part, " "])); // spaces, for readers that speak it
  $("outcome").replaceChildren(...body.filter(Boolean));
}

function drawHistory() {
  $("history-count").textContent = calls.length;
  $("history-clear").hidden = !calls.length;
  $("history-empty").hidden = Boolean(calls.length);
  $("history").replaceChildren(...calls.map((call) => {
    const outcome = !call.reply ? "running" : call.isOk ? "ok" : "error";
    return el("li", {}, el("button", { type: "button", title: call.began.toLocaleTimeString(), onclick: () => restore(call) },
      el("span", { class: "dot", "data-outcome": outcome }),
      el("span", { class: "name" }, call.item.name),
      el("span", { class: "outcome" }, outcome),
      el("span", { class: "muted" }, call.reply ? milliseconds(call.reply.ms) : "")));
  }));
}

async function callSelected() {
  const item = selected;
  const args = item && !$("call").ariaDisabled ? editorOf(item).read() : null;
  if (args === null) return;
  const control = new AbortController();
  const call = { item, args, callId: newCallId(), began: new Date(), control, reply: null, isOk: false };
  calls = [call, ...calls].slice(0, HISTORY_LENGTH);
  shown.set(item.key, call);
  drawOutcome();
  drawHistory();
  call.reply = await send(item, args, call.callId, control.signal);
  const envelope = call.reply.failure ? { success: false } : envelopeOf(call.reply);
  call.isOk = envelope.success && call.reply.status < 400;
  letOldRepliesGo();
  drawHistory();
  if (call.reply.failure === "unanswered") look();
  if (shown.get(item.key) !== call || selected?.key !== item.key) return;
  drawOutcome();
  if (envelope.details?.fields?.length) editorOf(item).report(envelope.details.fields);
  else if ($("result").getBoundingClientRect().top > innerHeight - 160) $("result").scrollIntoView();
}

function letOldRepliesGo() {
  let held = 0;
  for (const { reply } of calls.slice(1)) {
    const length = reply?.text?.length ?? 0;
    if (held + length <= HISTORY_TEXT) held += length;
    else Object.assign(reply, { text: "", failure: "forgotten" });
  }
}

function restore(call) {
  const item = items.find(({ key }) => key === call.item.key);
  if (!item) return toast(`${call.item.name} is no longer offered`);
  editorOf(item).write(call.args);
  shown.set(item.key, call);
  location.hash = item.key;
  drawSubject();
}

async function copyAs(write) {
  const args = editorOf(selected).read();
  if (args === null) return toast("These arguments cannot be read yet");
  await copy(write(selected, args));
}

function browse(isOpen) {
  document.body.classList.toggle("browsing", isOpen);
  $("browse").setAttribute("aria-expanded", isOpen);
  if (isOpen) $("search").focus();
}

/** Read the environment again; forms keep what was typed, as JSON where a changed schema has no field for it. */
async function refresh() {
  const { about, items: fresh } = await readEnvironment();
  items = fresh;
  for (const item of items) {
    const old = editors.get(item.key);
    if (!old || JSON.stringify(old.schema) === JSON.stringify(item.schema)) continue;
    const args = old.read();
    if (args === null) continue; // half-typed: the old form is better than an empty new one
    editors.delete(item.key);
    editorOf(item).write(args);
  }
  $("env-name").textContent = about.name;
  $("env-version").textContent = about.version ? `@${about.version}` : "";
  $("env-description").textContent = about.description ?? "";
  document.title = `${about.name} - aenv inspector`;
  drawItems();
  drawSubject();
}

function say(sentence) {
  $("banner").hidden = !sentence;
  $("banner").textContent = sentence;
}

/** One look at the server: its health and, if it is not the one seen last, everything else. */
async function lookOnce() {
  const seen = await readHealth();
  if (seen.state !== health) $("health-text").textContent = health = seen.state;
  $("health").dataset.state = seen.state;
  $("health").title = seen.why;
  if (seen.state === "unreachable") {
    startedAt = null;
    return say("The server does not answer. This page reconnects by itself.");
  }
  try {
    if (seen.startedAt !== startedAt) await refresh();
    startedAt = seen.startedAt;
    say("");
  } catch (error) {
    startedAt = null;
    say(`The environment cannot be read: ${error.message}`);
  }
}

async function look() {
  clearTimeout(timer);
  if (document.hidden) return;
  await (looking ??= lookOnce().finally(() => (looking = null)));
  clearTimeout(timer);
  timer = setTimeout(look, startedAt === null ? POLL_WHILE_AWAY_MS : POLL_MS);
}

function onKey(event) {
  const isCall = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  const isSearch = event.key === "/" && !event.target.closest("input, textarea, select");
  if (!isCall && !isSearch) return;
  event.preventDefault();
  if (isCall) callSelected();
  else $("search").focus();
}

const onClick = (id, listener) => $(id).addEventListener("click", listener);
for (const mode of ["form", "json"]) {
  onClick(`mode-${mode}`, () => {
    editorOf(selected).switchTo(mode);
    drawEditor();
  });
}
onClick("cancel", () => shown.get(selected.key)?.control.abort());
onClick("reset", () => {
  editors.delete(selected.key);
  drawEditor();
});
onClick("copy-curl", () => copyAs(asCurl));
onClick("copy-python", () => copyAs(asPython));
onClick("history-clear", () => {
  calls = calls.filter((call) => !call.reply);
  drawHistory();
});
onClick("browse", () => browse($("browse").getAttribute("aria-expanded") === "false"));
onClick("skip", (event) => {
  event.preventDefault(); // the address after # names the selected item
  $("main").focus();
});
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  callSelected();
});
$("search").addEventListener("input", drawItems);
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", look);
window.addEventListener("focus", look);
window.addEventListener("hashchange", drawSubject);
drawHistory();
look();
