// Pictures of fusions follow JupyterLab's theme attribute; the site's switch sets another one.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => {
  const theme = document.body.dataset.theme;
  document.body.dataset.jpThemeLight = String(theme === "light" || (theme !== "dark" && !dark.matches));
};
new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-theme"] });
dark.addEventListener("change", follow);
follow();

// Sphinx would mark the words of a search on the page of a result, and fails at the titles of pictures.
localStorage.removeItem("sphinx_highlight_terms");
