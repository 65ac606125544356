// The log works without this file. With it rows are added as one scrolls, keys step through matches, new lines appear.
"use strict";

const ROWS_HELD = 2000;
const rows = document.getElementById("rows");
const search = document.getElementById("q");
const lineOf = (row) => row.id.slice(1);
const lines = () => [...rows.querySelectorAll("li[id]")];

function address(place, row) {
  const url = new URL(location.pathname + location.search, location.origin);
  for (const name of ["at", "after", "before", "follow"]) url.searchParams.delete(name);
  url.searchParams.set(place, lineOf(row));
  return url;
}

async function read(url) {
  const answer = await fetch(url, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(answer.statusText);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

// One row is picked at a time: its address is that of the page, and it offers what can be done with it.
function pick(row) {
  for (const other of rows.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
  for (const action of rows.querySelectorAll(".act")) action.remove();
  row.setAttribute("aria-current", "true");
  const url = address("at", row);
  history.replaceState(null, "", `${url.pathname}${url.search}#${row.id}`);
  if (!rows.dataset.correct || row.classList.contains("routine")) return;
  const action = document.createElement("a");
  const values = new URLSearchParams({ root_line: row.dataset.line, stream: lineOf(row).replace(/-\d+$/, "") });
  if (row.dataset.node) values.set("node", row.dataset.node);
  action.className = "act";
  action.textContent = "This is the root cause";
  action.href = `${rows.dataset.correct}?${values}#feedback`;
  row.querySelector(".text").append(action);
}

rows.addEventListener("click", (event) => {
  const number = event.target.closest("a.no");
  if (!number || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  pick(number.closest("li"));
});

function step(forward) {
  const all = lines();
  const current = all.findIndex((row) => row.hasAttribute("aria-current"));
  const order = forward ? all.slice(current + 1) : all.slice(0, Math.max(current, 0)).reverse();
  const match = order.find((row) => row.querySelector("mark"));
  const link = document.getElementById(forward ? "next-match" : "previous-match");
  if (match) {
    pick(match);
    match.scrollIntoView({ block: "center" });
    match.querySelector("a.no").focus({ preventScroll: true });
  } else if (link) {
    location.assign(link.href);
  }
}

addEventListener("keydown", (event) => {
  const isTyped = event.target.closest("input, textarea, select");
  if (event.key === "Escape" && event.target === search) search.blur();
  if (isTyped || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "n" || event.key === "N") {
    step(event.key === "n");
  }
});
document.querySelector(".keys").hidden = false;

// Rows that lie far from what is looked at are taken out again: a browser is slow with a hundred thousand.
function hold(atEnd) {
  const all = [...rows.children];
  const surplus = all.length - ROWS_HELD;
  if (surplus <= 0) return;
  for (const row of atEnd ? all.slice(0, surplus) : all.slice(-surplus)) row.remove();
  offer(atEnd ? "earlier" : "later");
}

function offer(side) {
  const all = lines();
  let link = document.getElementById(side);
  if (!link) {
    const box = document.createElement("p");
    box.className = "more";
    link = document.createElement("a");
    link.id = side;
    box.append(link);
    if (side === "earlier") rows.before(box);
    else rows.after(box);
    watch(link);
  }
  link.textContent = side === "earlier" ? "Earlier rows" : "Later rows";
  link.href = side === "earlier" ? address("before", all[0]) : address("after", all[all.length - 1]);
}

let isLoading = false;
async function extend(link) {
  if (isLoading) return;
  isLoading = true;
  const isLater = link.id === "later";
  try {
    const page = await read(link.href);
    const fresh = [...page.getElementById("rows").children];
    const height = document.documentElement.scrollHeight;
    if (isLater) rows.append(...fresh);
    else {
      rows.prepend(...fresh);
      scrollBy(0, document.documentElement.scrollHeight - height);
    }
    const next = page.getElementById(link.id);
    if (next) link.href = next.href;
    else link.parentElement.remove();
    if (next) link.textContent = next.textContent;
    hold(isLater);
    count();
  } catch {
    // The link stays: it leads to the same rows.
  } finally {
    isLoading = false;
  }
}

function count() {
  document.getElementById("place").textContent = `${lines().length} rows shown`;
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting && entry.target.id === "later") extend(entry.target);
}, { rootMargin: "600px" });

function watch(link) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    extend(link);
  });
  seen.observe(link);
}
for (const side of ["earlier", "later"]) {
  const link = document.getElementById(side);
  if (link) watch(link);
}

function follow() {
  const status = document.getElementById("follow");
  const button = document.getElementById("pause");
  let news = null;
  let isPaused = false;
  let isBehind = false;

  const show = async () => {
    isBehind = true;
    if (isPaused || document.hidden) return tell();
    if (isLoading) return setTimeout(show, 200); // what came during that request may be missing from its answer
    isLoading = true;
    try {
      const all = lines();
      const url = all.length ? address("after", all[all.length - 1]) : location.href;
      const page = await read(url);
      const isAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
      const fresh = [...page.getElementById("rows").children].filter((row) => row.id);
      rows.append(...fresh);
      hold(true);
      count();
      isBehind = Boolean(page.getElementById("later"));
      if (isAtEnd) scrollTo(0, document.documentElement.scrollHeight);
    } catch {
      // The next event tries again.
    } finally {
      isLoading = false;
    }
    tell();
    if (isBehind) setTimeout(show, 500);
  };
  const tell = () => {
    status.textContent = isPaused ? (isBehind ? "Paused. Newer lines have come." : "Paused.") : "Following: new lines appear below.";
  };
  const start = () => {
    if (news) return;
    news = new EventSource(rows.dataset.live);
    news.onopen = show; // something may have come while nobody listened
    news.onerror = () => (status.textContent = "The connection is lost. Trying again.");
    news.addEventListener("log", show);
  };
  const stop = () => {
    if (news) news.close();
    news = null;
  };

  button.hidden = false;
  button.onclick = () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    button.textContent = isPaused ? "Go on" : "Pause";
    tell();
    if (!isPaused && isBehind) show();
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  tell();
  start();
  scrollTo(0, document.documentElement.scrollHeight);
}
if (rows.dataset.live) follow();
