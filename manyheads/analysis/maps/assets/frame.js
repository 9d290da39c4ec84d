// In the page around frames with attention maps: each frame gets the height of its content and the theme of the page.
window.manyheadsFrames ??= (() => {
  const theme = () => {
    const { theme, jpThemeLight } = document.body.dataset;
    return jpThemeLight === undefined ? { light: "light", dark: "dark" }[theme] ?? "system" : jpThemeLight === "true" ? "light" : "dark";
  };
  const frames = new Map(); // by the window inside
  addEventListener("message", ({ source, data }) => {
    if (data?.manyheads !== "height") return;
    const frame = frames.get(source) ?? [...document.querySelectorAll("iframe.manyheads")].find((each) => each.contentWindow === source);
    if (!frame) return;
    if (!frames.has(source)) source.postMessage({ theme: theme() }, "*");
    frames.set(source, frame);
    frame.style.height = `${Math.min(Math.ceil(data.height) + 8, 5000)}px`;
  });
  new MutationObserver(() => { for (const source of frames.keys()) source.postMessage({ theme: theme() }, "*"); })
    .observe(document.body, { attributes: true, attributeFilter: ["data-theme", "data-jp-theme-light"] });
  return true;
})();
