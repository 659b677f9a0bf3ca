// Light or dark: as the system says, or as the reader does.

const NEXT = { system: "light", light: "dark", dark: "system" };
const SIGNS = { system: "◐", light: "☀", dark: "☾" };
const SAID = { system: "as the system says", light: "light", dark: "dark" };

export function watchTheme(button) {
  let now = kept();
  const set = (theme) => {
    now = theme;
    if (theme === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = theme;
    button.textContent = SIGNS[theme];
    button.setAttribute("aria-label", `Colours: ${SAID[theme]}`);
    button.title = `Colours: ${SAID[theme]}`;
  };
  button.addEventListener("click", () => {
    set(NEXT[now]);
    try {
      localStorage.setItem("theme", now);
    } catch {
      // A page from disk may keep nothing: then it is as the system says next time.
    }
  });
  set(now);
}

function kept() {
  try {
    const theme = localStorage.getItem("theme");
    return theme in NEXT ? theme : "system";
  } catch {
    return "system";
  }
}
