// The workbench works without this file. With it the result follows what is typed, and a rule that is tested is watched.
"use strict";

const form = document.getElementById("workbench");
const TYPING_MS = 300;
const MORE_MS = 700;
const TESTED_MS = 2000;
let waiting = 0;
let asked = ""; // what the shown result answers
let busy = false; // one request at a time: a slow pattern must not pile up

function address() {
  const fields = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value || name === "patterns") fields.set(name, value);
  return `${form.getAttribute("action")}?${fields}`;
}

async function page(url) {
  const answer = await fetch(url, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(answer.statusText);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function put(id, fresh) {
  const [old, next] = [document.getElementById(id), fresh.getElementById(id)];
  if (old && next && !old.contains(document.activeElement)) old.replaceWith(next);
}

async function refresh(again) {
  const wanted = address();
  if (busy || (wanted === asked && !again)) return;
  busy = true;
  form.classList.add("busy");
  try {
    const fresh = await page(wanted);
    put("result", fresh);
    put("found", fresh);
    asked = wanted;
    history.replaceState(null, "", wanted);
  } catch {
    // the next key asks again
  } finally {
    busy = false;
    form.classList.remove("busy");
  }
  if (address() !== asked) soon();
  else if ("more" in document.getElementById("result").dataset) soon(MORE_MS, true);
}

function soon(delay = TYPING_MS, again = false) {
  clearTimeout(waiting);
  waiting = setTimeout(() => document.hidden || refresh(again), delay);
}

async function watchRule() {
  const rule = document.getElementById("rule");
  if (!rule || rule.dataset.state !== "proposed") return;
  if (!document.hidden && !rule.contains(document.activeElement)) {
    put("rule", await page(location.href).catch(() => document));
  }
  setTimeout(watchRule, TESTED_MS);
}

const isFilled = (field) => "defaultValue" in field && field.value !== field.defaultValue;
if ([...form.elements].some(isFilled)) soon(0); // typed, or restored by the browser, before this file was loaded
else asked = address();
form.addEventListener("input", () => soon());
if ("more" in document.getElementById("result").dataset) soon(MORE_MS, true);
setTimeout(watchRule, TESTED_MS);
