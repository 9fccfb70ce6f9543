// Before anything is drawn, so that no page flashes in the wrong colours.
(() => {
  const chosen = localStorage.getItem("memplane-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
