// A form made from a JSON Schema, and the editor that holds it next to a JSON view of the same arguments.
//
// A widget has read(problems), a value or undefined for nothing to send; write(value), undefined for its blank state; and,
// if it has parts, report(path, message). What the arguments may be is for the server to say: refused here is only text
// that is no value at all, and a value that a widget cannot show.

import { el, flag, freshId } from "./dom.js";
import { parseExact } from "./wire.js";

const MAX_DEPTH = 4;
const LONG_TEXT = /code|content|text|body|prompt|script|message|source|markdown|html|patch|diff/i;

class Refused extends Error {}

function insist(isTrue, message) {
  if (!isTrue) throw new Refused(message);
}

const isRaw = (value) => JSON.isRawJSON?.(value) ?? false;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value) && !isRaw(value);

/** The schema with references followed and "or null" turned into `nullable: true`. */
function resolve(schema, root) {
  if (!isObject(schema)) return {};
  const { $ref, allOf, anyOf, oneOf, type, ...own } = schema;
  if ($ref?.startsWith("#/")) {
    const keys = $ref.slice(2).split("/").map((key) => key.replaceAll("~1", "/").replaceAll("~0", "~"));
    return resolve({ ...keys.reduce((at, key) => at?.[key], root), ...own }, root);
  }
  if (allOf?.length === 1) return resolve({ ...allOf[0], ...own }, root);
  const options = anyOf ?? oneOf ?? (Array.isArray(type) ? type.map((each) => ({ type: each })) : null);
  if (!options) return schema;
  const valued = options.filter((option) => option.type !== "null");
  const nullable = valued.length < options.length;
  if (valued.length !== 1) return { ...own, union: valued, nullable };
  return { ...resolve({ ...valued[0], ...own }, root), nullable };
}

function typeLabel(schema, root) {
  const say = (each) => typeLabel(resolve(each, root), root);
  if (schema.union) return schema.union.map(say).join(" | ");
  if (schema.enum || "const" in schema) return "choice";
  if (schema.type === "array" && schema.items) return `array of ${say(schema.items)}`;
  const parts = [schema.type ?? "any JSON"];
  if (schema.format) parts.push(schema.format);
  if (schema.minimum !== undefined) parts.push(`≥ ${schema.minimum}`);
  if (schema.maximum !== undefined) parts.push(`≤ ${schema.maximum}`);
  return parts.join(", ");
}

/** A widget of one control: `accepts` says which values it can show, `misfit` what to say of others. */
const leaf = (element, misfit, accepts, read, show) => ({
  element,
  read,
  write(value) {
    insist(value === undefined || accepts(value), misfit);
    show(value);
  },
});

function textWidget(schema, { id, name }) {
  const isLong = LONG_TEXT.test(name) || schema.maxLength > 400;
  const size = isLong ? { rows: 4, class: "long" } : { rows: 1 };
  const area = el("textarea", { id, ...size, placeholder: schema.examples?.[0], spellcheck: "false" });
  const show = (value = "") => (area.value = value);
  return leaf(area, "is not a text", (value) => typeof value === "string", () => area.value, show);
}

function numberWidget(schema, { id }) {
  const inputmode = schema.type === "integer" ? "numeric" : "decimal";
  const input = el("input", { id, type: "text", inputmode, autocomplete: "off" });
  const read = () => {
    const text = input.value.trim();
    if (!text) return undefined;
    insist(Number.isFinite(Number(text)), "not a number");
    if (!/^-?\d+$/.test(text) || Number.isSafeInteger(Number(text))) return Number(text);
    insist(JSON.rawJSON, "this browser cannot send a number this large exactly");
    return JSON.rawJSON(BigInt(text).toString());
  };
  const show = (value) => (input.value = value === undefined ? "" : JSON.stringify(value));
  return leaf(input, "is not a number", (value) => typeof value === "number" || isRaw(value), read, show);
}

function booleanWidget(_, { id }) {
  const box = el("input", { id, type: "checkbox" });
  const show = (value = false) => (box.checked = value);
  return leaf(box, "is not true or false", (value) => typeof value === "boolean", () => box.checked, show);
}

function choiceWidget(schema, { id }) {
  const values = schema.enum ?? [schema.const];
  const texts = values.map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
  const options = texts.map((text, at) => el("option", { value: at }, text));
  const select = el("select", { id }, el("option", { value: "" }, "choose"), ...options);
  const find = (value) => values.findIndex((each) => JSON.stringify(each) === JSON.stringify(value));
  const read = () => (select.value === "" ? undefined : values[select.value]);
  const show = (value) => (select.value = value === undefined ? "" : find(value));
  return leaf(select, "is not one of the choices", (value) => find(value) >= 0, read, show);
}

function jsonWidget(_, { id }) {
  const area = el("textarea", { id, rows: 4, class: "code long", spellcheck: "false", placeholder: "JSON" });
  const read = () => {
    try {
      return area.value.trim() ? parseExact(area.value) : undefined;
    } catch (error) {
      throw new Refused(`not JSON: ${error.message}`);
    }
  };
  const show = (value) => (area.value = value === undefined ? "" : JSON.stringify(value, null, 2));
  return { ...leaf(area, "", () => true, read, show), checksWhileTyping: true };
}

function listWidget(schema, { root, depth, name }) {
  let rows = [];
  const list = el("ol", { class: "rows" });
  const add = el("button", { type: "button", class: "link" }, "Add item");
  const changed = () => list.dispatchEvent(new Event("input", { bubbles: true }));
  function append(value) {
    const field = createField(`${rows.length + 1}`, schema.items, { required: true, root, depth: depth + 1 });
    if (value !== undefined) field.write(value);
    const remove = el("button", { type: "button", class: "link", "aria-label": `Remove this item of ${name}` }, "Remove");
    const line = el("li", {}, field.element, remove);
    remove.addEventListener("click", () => {
      rows = rows.filter((each) => each !== field);
      rows.forEach((each, index) => each.rename(`${index + 1}`));
      line.remove();
      add.focus();
      changed();
    });
    rows.push(field);
    list.append(line);
    return field;
  }
  add.addEventListener("click", () => {
    append().element.querySelector("input, textarea, select, button")?.focus();
    changed();
  });
  const write = (value = Array(Math.min(schema.minItems ?? 0, 3)).fill()) => {
    insist(Array.isArray(value), "is not an array");
    rows = [];
    list.replaceChildren();
    value.forEach((each) => append(each));
  };
  return {
    element: el("div", { class: "nest" }, list, add),
    read: (problems) => rows.map((field) => field.read(problems)),
    write,
    report: ([index, ...path], message) => rows[index]?.report(path, message),
  };
}

function groupWidget(schema, { root, depth }) {
  const fields = new Map(Object.entries(schema.properties).map(([name, each]) =>
    [name, createField(name, each, { required: schema.required?.includes(name) ?? false, root, depth: depth + 1 })]));
  const write = (value) => {
    if (value === undefined) return fields.forEach((field) => field.reset());
    insist(isObject(value), "is not an object");
    const unknown = Object.keys(value).find((name) => !fields.has(name));
    insist(unknown === undefined, `has no field ${JSON.stringify(unknown)}`);
    fields.forEach((field, name) => field.write(value[name]));
  };
  return {
    element: el("div", { class: depth ? "nest" : "fields" },
      ...Array.from(fields.values(), (field) => field.element),
      fields.size ? null : el("p", { class: "muted" }, "Takes no arguments.")),
    read: (problems) => Object.fromEntries(
      Array.from(fields, ([name, field]) => [name, field.read(problems)]).filter(([, value]) => value !== undefined)),
    write,
    report: ([name, ...path], message) => fields.get(name)?.report(path, message),
  };
}

function widgetFor(schema, context) {
  if (schema.enum || "const" in schema) return choiceWidget(schema, context);
  if (schema.type === "string") return textWidget(schema, context);
  if (schema.type === "integer" || schema.type === "number") return numberWidget(schema, context);
  if (schema.type === "boolean") return booleanWidget(schema, context);
  if (context.depth >= MAX_DEPTH) return jsonWidget(schema, context);
  if (schema.type === "array" && isObject(schema.items) && !schema.prefixItems) return listWidget(schema, context);
  const isGroup = isObject(schema.properties) && (Object.keys(schema.properties).length || !schema.additionalProperties);
  return isGroup ? groupWidget(schema, context) : jsonWidget(schema, context);
}

/** A widget with its label, description and error; where it may be absent or null, also the choice whether to send it. */
function createField(name, rawSchema, { required, root, depth }) {
  const schema = resolve(rawSchema, root);
  const id = freshId();
  const widget = widgetFor(schema, { id, name, root, depth });
  const isComposite = "report" in widget;
  const isCheckbox = widget.element.type === "checkbox";
  const fallback = schema.default ?? undefined;
  const presence = schema.nullable || (!required && fallback === undefined)
    ? el("select", { class: "presence", "aria-label": `Send ${name}` },
        required ? null : el("option", { value: "omit" }, "leave out"),
        schema.nullable ? el("option", { value: "null" }, "null") : null,
        el("option", { value: "value" }, "value"))
    : null;
  const label = el("label", { id: `${id}-label`, for: isComposite ? null : id }, name);
  const error = el("p", { class: "error", id: `${id}-error` });
  const role = isComposite ? { role: "group", "aria-labelledby": label.id } : {};
  const element = el("div", { class: isComposite || isCheckbox ? "field" : "field plain", ...role },
    el("div", { class: "field-head" },
      isCheckbox ? widget.element : null,
      label,
      required ? el("span", { class: "required" }, "required") : null,
      el("span", { class: "type" }, typeLabel(schema, root)),
      presence),
    schema.description ? el("p", { class: "description", id: `${id}-description` }, schema.description) : null,
    isCheckbox ? null : widget.element,
    error);
  if (!isComposite) widget.element.setAttribute("aria-describedby", `${id}-description ${id}-error`);

  function complain(message) {
    error.textContent = message;
    if (!isComposite) flag(widget.element, "aria-invalid", message);
  }
  function show(mode) {
    if (presence) presence.value = mode;
    element.classList.toggle("absent", mode !== "value");
  }
  function read(problems) {
    complain("");
    if (presence && presence.value !== "value") return presence.value === "null" ? null : undefined;
    try {
      return widget.read(problems);
    } catch (problem) {
      if (!(problem instanceof Refused)) throw problem;
      complain(problem.message);
      problems.push(problem.message);
    }
  }
  function write(value) {
    complain("");
    if (value === null && schema.nullable) return show("null");
    if (value === undefined && presence && !required) return show("omit");
    try {
      widget.write(value ?? fallback);
    } catch (problem) {
      throw problem instanceof Refused && depth ? new Refused(`${name} ${problem.message}`) : problem;
    }
    show("value");
  }
  function reset() {
    try {
      widget.write(fallback);
    } catch {
      widget.write(undefined); // the author's default does not fit the schema: the server is the one to say so
    }
    show(fallback === undefined && presence ? presence.options[0].value : "value");
  }
  function report(path, message) {
    if (!(path.length && widget.report?.(path, message))) complain([...path, message].join(": "));
    return true;
  }

  presence?.addEventListener("input", () => show(presence.value));
  widget.element.addEventListener("input", () => {
    show("value");
    if (widget.checksWhileTyping) read([]);
    else complain("");
  });
  reset();
  return { element, read, write, reset, report, rename: (text) => (label.textContent = text) };
}

/** The arguments of one item, edited as a form or as JSON. */
export function createEditor(schema) {
  const form = createField("form", { ...schema, description: null }, { required: true, root: schema, depth: 0 });
  const raw = createField("Arguments as JSON", { default: {} }, { required: true, root: {}, depth: 0 });
  const element = el("div", { class: "editor" }, form.element, raw.element);
  const editor = { element, schema, mode: "form", show, read, write, switchTo, report };

  function show(mode) {
    editor.mode = mode;
    form.element.hidden = mode !== "form";
    raw.element.hidden = mode !== "json";
  }
  /** The arguments, or null after marking what cannot be read. */
  function read() {
    const problems = [];
    const value = (editor.mode === "form" ? form : raw).read(problems) ?? {};
    if (!problems.length && isObject(value)) return value;
    if (!problems.length) raw.report([], "the arguments must be a JSON object");
    element.querySelector("[aria-invalid]")?.focus();
    return null;
  }
  /** Show these arguments: in the form if it can hold them, else as JSON. Returns why the form cannot. */
  function write(args) {
    raw.write(args);
    try {
      form.write(args);
    } catch (problem) {
      if (!(problem instanceof Refused)) throw problem;
      show("json");
      return problem.message;
    }
  }
  function switchTo(mode) {
    const args = read();
    if (args === null) return;
    const misfit = write(args);
    if (misfit) raw.report([], `the form cannot show this: ${misfit}`);
    else show(mode);
  }
  /** Put the server's complaints next to the fields they are about. */
  function report(complaints) {
    const pathOf = (field) => `${field}`.replace(/\[(\w+)\]/g, ".$1").split(".");
    if (editor.mode === "json") raw.report([], complaints.map(({ field, message }) => `${field}: ${message}`).join("\n"));
    else for (const { field, message } of complaints) form.report(pathOf(field), message);
    element.querySelector("[aria-invalid]")?.focus();
  }
  show("form");
  return editor;
}
