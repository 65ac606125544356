// Everything works without this file. With it lists follow what is new, and lines can be copied.
"use strict";

const list = document.getElementById("list");

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("list");
  if (list.contains(document.activeElement)) return; // somebody is about to press something there
  if (list.querySelector(".pick:checked")) return;
  const known = new Set([...list.querySelectorAll("tr[id]")].map((row) => row.id));
  list.replaceChildren(...fresh.childNodes);
  for (const row of list.querySelectorAll("tr[id]")) {
    row.classList.toggle("new", !known.has(row.id));
  }
  offerCopies(list);
  const nav = document.querySelector("header.top nav");
  const badges = page.querySelector("header.top nav");
  if (badges && !nav.contains(document.activeElement)) nav.replaceWith(badges);
  offerPicks();
}

function follow() {
  const sign = document.getElementById("live");
  let news = null;
  let waiting = 0;
  let isFirst = true;

  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => refresh().catch(() => {}), 300);
  };
  const stop = () => {
    if (news) news.close();
    news = null;
  };
  const start = () => {
    if (news) return;
    news = new EventSource(`/api/v1/live?since=${list.dataset.live}`);
    news.onopen = () => {
      sign.hidden = false;
      sign.classList.remove("off");
      if (!isFirst) soon(); // something may have come while nobody listened; at first the server tells what did
      isFirst = false;
    };
    news.onerror = () => sign.classList.add("off");
    news.addEventListener("diagnosis", soon);
  };

  start();
  // A browser opens few connections to one host: pages in the background give theirs back.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => event.persisted && start());
  setInterval(() => document.hidden || soon(), 60000); // keeps "3 min ago" true
}

function offerPicks() {
  const all = document.getElementById("pick-all");
  if (!all) return;
  all.closest("label").hidden = false;
  all.onchange = () => {
    for (const pick of list.querySelectorAll("input.pick")) pick.checked = all.checked;
  };
}

function offerCopies(where) {
  if (!navigator.clipboard) return;
  for (const button of where.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.onclick = async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    };
  }
}

for (const choice of document.querySelectorAll("form.filters select")) {
  choice.onchange = () => choice.form.requestSubmit();
}
for (const all of document.querySelectorAll("input[data-all]")) {
  const ticks = () => [...all.form.elements].filter((tick) => tick.name === all.dataset.all);
  all.parentElement.hidden = ticks().length < 2;
  all.onchange = () => ticks().forEach((tick) => (tick.checked = all.checked));
}
// A large log is read while its page is shown already. Then the page is shown anew, but not under somebody's hands.
async function lookAgain(note, isTouched) {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!answer.ok || page.getElementById("reading")) return false;
  if (!isTouched()) location.reload();
  else note.firstChild.textContent = "The log of this attempt has been read. ";
  return true;
}

function waitForLog(note) {
  let touched = false;
  addEventListener("input", () => (touched = true));
  const again = async () => {
    const isDone = document.hidden ? false : await lookAgain(note, () => touched).catch(() => false);
    if (!isDone) setTimeout(again, 2000);
  };
  setTimeout(again, 2000);
}

// The stages of plans move on by themselves, and what the page says of the plans with them.
async function movePlans() {
  const moving = document.querySelector("ol.strip[data-moving]");
  if (document.hidden || !moving) return false;
  const plans = moving.closest("section");
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(plans.id);
  const text = (where) => [...where.querySelectorAll("ol.strip")].map((strip) => strip.textContent).join();
  if (!answer.ok || !fresh || text(fresh) === text(plans)) return false;
  if (!plans.contains(document.activeElement)) plans.replaceChildren(...fresh.childNodes);
  else if (plans.querySelectorAll("ol.strip").length === 1) {
    moving.replaceWith(fresh.querySelector("ol.strip")); // somebody is about to press something there
  }
  return true;
}

// A plan may wait for hours: where nothing moves, the next look comes later.
function followPlan(pause) {
  setTimeout(async () => {
    const isMoved = await movePlans().catch(() => false);
    followPlan(isMoved ? 2000 : Math.min(pause * 1.3, 20000));
  }, pause);
}

if (document.querySelector("ol.strip")) followPlan(2000);

const reading = document.getElementById("reading");
if (reading) waitForLog(reading);
offerCopies(document);
offerPicks();
if (list && "live" in list.dataset) follow();
if (list && "refresh" in list.dataset) setInterval(() => document.hidden || refresh().catch(() => {}), 10000);

// Times of day are those of the reader; UTC stands in the title. Without this file they are in UTC.
const CLOCKS = {
  time: new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }),
  day: new Intl.DateTimeFormat([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
};
function tellLocalTimes(where) {
  for (const node of where.querySelectorAll("[data-clock]")) {
    const seconds = node.dataset.time ? Number(node.dataset.time) : Date.parse(node.getAttribute("datetime")) / 1000;
    node.textContent = CLOCKS[node.dataset.clock].format(new Date(1000 * seconds));
  }
}
tellLocalTimes(document);
