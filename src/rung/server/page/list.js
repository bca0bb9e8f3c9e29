// The list of conversations: open, search, name, export, delete.
import { deleteConversation, exportMarkdown, openConversation, renameConversation } from "./chat.js";
import { state, update } from "./state.js";
import { search, writePreference } from "./storage.js";
import { html, IconButton, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const DAY = 24 * 3600 * 1000;
const isNarrow = () => matchMedia("(width < 800px)").matches;

export function toggleList() {
  const isListOpen = !state.isListOpen;
  if (!isNarrow()) writePreference("list", isListOpen);
  update({ isListOpen });
  if (isNarrow() && isListOpen) setTimeout(() => document.getElementById("search").focus(), 50);
}

export function focusSearch() {
  if (!state.isListOpen) toggleList();
  setTimeout(() => document.getElementById("search").select(), 50); // drawn by then
}

/** Return when a conversation was last written in, as a heading of the list. */
function periodOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  return time >= today - 7 * DAY ? "Last seven days" : "Older";
}

/** The title of a conversation as an input: Enter and leaving it keep the name, Escape does not. */
function Name({ head, onDone }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    place.current.focus();
    place.current.select();
  }, []);
  const keep = () => {
    const title = place.current?.value.trim();
    if (title && title !== head.title) renameConversation(head.id, title);
    onDone();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter") keep();
    if (event.key === "Escape") onDone();
    if (event.key === "Escape" || event.key === "Enter") event.preventDefault();
  };
  return html`<input
    ref=${place}
    class="name"
    aria-label="Name of the conversation"
    maxlength="200"
    value=${head.title}
    onKeyDown=${onKeyDown}
    onBlur=${keep}
  />`;
}

function Row({ head }) {
  const [isNamed, setIsNamed] = useState(false);
  const isCurrent = head.id === state.conversation.id;
  const onClick = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab
    event.preventDefault();
    if (isNarrow()) toggleList();
    openConversation(head.id);
  };
  if (isNamed) return html`<li><${Name} head=${head} onDone=${() => setIsNamed(false)} /></li>`;
  return html`<li class=${isCurrent ? "current" : ""}>
    <a href=${`#${head.id}`} aria-current=${isCurrent ? "page" : null} title=${head.title} onClick=${onClick}>
      ${state.running.has(head.id) && html`<span class="busy" role="img" aria-label="An answer is being written:"></span>`}${head.title}
    </a>
    <span class="actions">
      <${IconButton} icon="edit" label="Rename" onClick=${() => setIsNamed(true)} />
      <${IconButton} icon="export" label="Export as Markdown" onClick=${() => exportMarkdown(head.id)} />
      <${IconButton} icon="delete" label="Delete" onClick=${() => deleteConversation(head.id)} />
    </span>
  </li>`;
}

export function List() {
  const [words, setWords] = useState("");
  const [found, setFound] = useState(null);
  useEffect(() => {
    if (!words.trim()) return setFound(null);
    const timer = setTimeout(async () => setFound(await search(words.trim())), 150);
    return () => clearTimeout(timer);
  }, [words, state.heads]);
  const heads = found ? state.heads.filter(({ id }) => found.has(id)) : state.heads;
  const periods = Map.groupBy(heads, ({ updated }) => periodOf(updated));
  const onEscape = (event) => {
    if (event.key !== "Escape" || !words) return;
    event.preventDefault();
    setWords("");
  };
  return html`<nav id="list" aria-label="Conversations" inert=${!state.isListOpen}>
    <input
      id="search"
      type="search"
      placeholder="Search conversations"
      aria-label="Search conversations"
      value=${words}
      onInput=${(event) => setWords(event.target.value)}
      onKeyDown=${onEscape}
    />
    <div class="rows">
      ${[...periods].map(
        ([period, rows]) => html`<section key=${period}>
          <h2>${period}</h2>
          <ul>
            ${rows.map((head) => html`<${Row} key=${head.id} head=${head} />`)}
          </ul>
        </section>`,
      )}
      ${!heads.length && html`<p class="quiet">${found ? "None has these words." : "Conversations are kept here, in this browser."}</p>`}
    </div>
    <p class="quiet"><button type="button" class="link" onClick=${() => update({ dialog: "keyboard" })}>Keyboard</button></p>
  </nav>`;
}
