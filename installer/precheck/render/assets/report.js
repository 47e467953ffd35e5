"use strict";
// The report is whole without this. It hides what does not fit the filter; what is printed is what is to be seen.
const form = document.getElementById("filter");
const problems = [...document.querySelectorAll(".problem")].map((card) => ({
  card, level: card.dataset.level, groups: card.dataset.groups.split(" "), text: card.textContent.toLowerCase(), id: card.querySelector("code").textContent,
  findings: [...card.querySelectorAll("li")].map((li) => ({li, names: [...li.querySelectorAll(".names")].map((n) => n.textContent.toLowerCase()).join(" ")})),
}));
const table = document.getElementById("matrix");
const columns = [...table.tHead.rows[0].cells].slice(1).map((head) => ({
  head, level: head.dataset.level, groups: head.dataset.groups.split(" "), text: (head.textContent + " " + head.title).toLowerCase(), shown: true,
}));
const rows = [...table.tBodies[0].rows].map((row) => ({row, level: row.dataset.level, name: row.cells[0].textContent.toLowerCase()}));

function apply() {
  const host = form.host.value.trim().toLowerCase(), text = form.text.value.trim().toLowerCase(), group = form.group.value;
  const levels = new Set([...form.elements.level].filter((box) => box.checked).map((box) => box.value));
  const fits = (one) => levels.has(one.level) && (!group || one.groups.includes(group));
  const named = new Set();
  let cards = 0;
  for (const p of problems) {
    let some = false;
    for (const f of p.findings) {
      f.li.hidden = host !== "" && !f.names.includes(host);
      some ||= !f.li.hidden;
    }
    p.card.hidden = !(fits(p) && p.text.includes(text) && (some || !host));
    if (!p.card.hidden) {
      cards++;
      named.add(p.id);
    }
  }
  columns.forEach((c, i) => {
    const show = fits(c) && (c.text.includes(text) || named.has(c.head.textContent));
    if (show !== c.shown) {
      c.shown = show;
      for (const row of table.rows) {
        row.cells[i + 1].hidden = !show;
      }
    }
  });
  let hosts = 0;
  for (const r of rows) {
    r.row.hidden = !(levels.has(r.level) && r.name.includes(host));
    hosts += r.row.hidden ? 0 : 1;
  }
  document.getElementById("shown").textContent = cards + " of " + problems.length + " problems, " + hosts + " of " + rows.length + " rows, " +
    columns.filter((c) => c.shown).length + " of " + columns.length + " checks";
}

form.hidden = false;
form.addEventListener("input", apply);
form.addEventListener("reset", () => setTimeout(apply));
form.addEventListener("submit", (event) => event.preventDefault());
// A link into a problem opens nothing by itself: its card has to be there, and to have the focus for those who use keys.
addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  const card = link && document.getElementById(decodeURIComponent(link.hash.slice(1)));
  if (card) {
    card.hidden = false;
    setTimeout(() => card.focus());
  }
});
apply();
