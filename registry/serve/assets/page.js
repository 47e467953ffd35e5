"use strict";
// The page works without this. It adds buttons that copy a command, and hides what does not fit while somebody types;
// Enter asks the server, which looks at all pages.
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // only secure origins have a clipboard: select the text instead
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
const box = document.getElementById("q");
const shown = document.getElementById("shown");
if (box && shown) {
  const items = [...document.querySelectorAll("#items .item")];
  const before = shown.textContent, first = box.value;
  const texts = items.map((item) => item.textContent.toLowerCase());
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    items.forEach((item, i) => {
      item.hidden = !words.every((word) => texts[i].includes(word));
      n += item.hidden ? 0 : 1;
    });
    shown.textContent = box.value === first ? before : n + " on this page; Enter searches everything";
  });
}
