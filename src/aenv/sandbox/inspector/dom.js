// Elements, the clipboard and downloads. Text from the environment reaches the page only as text nodes and
// attribute values, never as markup.

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children; `on…` attributes are listeners, false and null ones are left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** Set an ARIA state to "true", or take it away. */
export function flag(node, name, isOn) {
  if (isOn) node.setAttribute(name, "true");
  else node.removeAttribute(name);
}

export function toast(text) {
  $("toast").textContent = text;
  setTimeout(() => ($("toast").textContent = ""), 2500);
}

let ids = 0;
export const freshId = () => `f${++ids}`;

export async function copy(text) {
  // The async clipboard exists in secure contexts only; an inspector opened over plain http from another host is none.
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copyBySelection(text);
  toast("Copied");
}

function copyBySelection(text) {
  const area = el("textarea", { class: "visually-hidden" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function download(text, name, type) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href, download: name }).click();
  // The download reads the blob after this turn; a minute is ample, and then 10 MB are free again.
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
