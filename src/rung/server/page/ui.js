// Preact with htm, and pieces that all parts of the page have.
import { Component, html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact.js";

export { Component, html, render, useEffect, useLayoutEffect, useMemo, useRef, useState };

const PATHS = {
  attach: "M20 11.5 12 19.5a5 5 0 0 1-7-7l8.5-8.5a3.4 3.4 0 0 1 4.8 4.8L9.9 17.2a1.7 1.7 0 0 1-2.4-2.4l7.4-7.4",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  delete: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  export: "M12 4v11M7 10l5 5 5-5M5 20h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  new: "M12 5v14M5 12h14",
  next: "m9 6 6 6-6 6",
  previous: "m15 6-6 6 6 6",
  retry: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  send: "M12 20V5M6 11l6-6 6 6",
  settings: "M4 8h9M19 8h1M4 16h1M11 16h9M16 5.5v5M8 13.5v5",
  stop: "M7 7h10v10H7z",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

/** A button with a picture. */
export function IconButton({ icon, label, ...rest }) {
  return html`<button type="button" class="icon-button" title=${label} aria-label=${label} ...${rest}>
    <${Icon} name=${icon} />
  </button>`;
}

/** A dialog of the browser: it keeps the focus inside and gives it back. It is open while it is drawn. */
export function Dialog({ title, class: kind = "", onClose, children }) {
  const place = useRef(null);
  useEffect(() => {
    const dialog = place.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const closed = () => place.current && onClose(); // not where it is closed because it is drawn no longer
  const clicked = (event) => event.target === place.current && onClose();
  return html`<dialog ref=${place} class=${kind} aria-labelledby="dialog-title" onClose=${closed} onClick=${clicked}>
    <div class="dialog-body">
      <header>
        <h2 id="dialog-title">${title}</h2>
        <${IconButton} icon="close" label="Close" onClick=${onClose} />
      </header>
      ${children}
    </div>
  </dialog>`;
}

/** Have the browser save a file. */
export function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
