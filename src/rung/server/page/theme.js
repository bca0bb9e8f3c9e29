// Before the first paint: the chosen colors, so that a dark page does not flash white. Not a module: those run later.
try {
  const theme = JSON.parse(localStorage.getItem("rung.theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // The colors of the system.
}
