// What pages do by themselves: times in the reader's zone, colours, copying, and telling what has happened.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

  function nameTheme() {
    const button = document.getElementById("theme");
    if (!button) return;
    const next = isDark() ? "light" : "dark";
    button.textContent = isDark() ? "☀" : "☾";
    button.setAttribute("aria-label", `Use ${next} colours`);
    button.title = `Use ${next} colours`;
  }

  function setTheme() {
    const next = isDark() ? "light" : "dark";
    root.dataset.theme = next;
    localStorage.setItem("memplane-theme", next);
    nameTheme();
    document.dispatchEvent(new Event("memplane:theme"));
  }

  function localise(within) {
    for (const element of within.querySelectorAll("time[datetime]:not([data-told])")) {
      const moment = new Date(element.dateTime);
      element.title = element.textContent;
      element.textContent = full.format(moment);
      element.dataset.told = "";
    }
  }

  async function copy(button) {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent.trim());
    } catch {
      getSelection().selectAllChildren(source);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") setTheme();
    if (button.dataset.copy) copy(button);
  });

  // A part of the page was put in: whoever reads by ear is told of it.
  document.addEventListener("htmx:afterSettle", (event) => {
    localise(document);
    const note = document.querySelector("#notice .note");
    if (note && event.detail.requestConfig?.verb !== "get") note.focus();
  });

  dark.addEventListener("change", () => {
    nameTheme();
    document.dispatchEvent(new Event("memplane:theme"));
  });
  nameTheme();
  localise(document);
  document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
})();
