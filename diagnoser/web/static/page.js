// Everything works without this file. With it the list follows new diagnoses, and lines can be copied.
"use strict";

const list = document.getElementById("list");

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("list");
  const known = new Set([...list.querySelectorAll("tr[id]")].map((row) => row.id));
  list.replaceChildren(...fresh.childNodes);
  for (const row of list.querySelectorAll("tr[id]")) {
    row.classList.toggle("new", !known.has(row.id));
  }
  offerCopies(list);
}

function follow() {
  const sign = document.getElementById("live");
  const news = new EventSource("/api/v1/live");
  let waiting = 0;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => refresh().catch(() => {}), 300);
  };
  let opened = false;
  news.onopen = () => {
    sign.hidden = false;
    sign.classList.remove("off");
    if (opened) soon(); // something may have come while the stream was down
    opened = true;
  };
  news.onerror = () => sign.classList.add("off");
  news.addEventListener("diagnosis", soon);
  setInterval(() => document.hidden || soon(), 60000); // keeps "3 min ago" true
  addEventListener("pagehide", () => news.close());
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
offerCopies(document);
if (list && "live" in list.dataset) follow();
