// Where a message is written: text, files, send and stop.
import { notify, send, stop } from "./chat.js";
import { readPreference, writePreference } from "./storage.js";
import { Files, size } from "./thread.js";
import { html, Icon, IconButton, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

/** Bytes of a file, and of all of a message, at most: the server takes 8 MB with all that was said before. */
const MOST_FILE = 2 ** 20, MOST_FILES = 2 ** 22;

/** Return the text of a file, or raise an Error with a sentence. */
async function textOf(file) {
  if (file.size > MOST_FILE) throw new Error(`${file.name} has ${size(file.size)}; at most ${size(MOST_FILE)} can be attached.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch {
    // What is not UTF-8 is no text, and the sentence below says so.
  }
  throw new Error(`${file.name} is no text file. Text in UTF-8 can be attached: code, tables, notes.`);
}

/** Return files with their text added to those there are; what cannot be attached is said. */
async function withFiles(there, added) {
  const all = [...there];
  for (const file of added) {
    try {
      const text = await textOf(file);
      const sum = all.reduce((bytes, each) => bytes + each.text.length, text.length);
      if (sum > MOST_FILES) throw new Error(`A message can have ${size(MOST_FILES)} of files.`);
      all.push({ name: file.name, text });
    } catch (error) {
      notify(error.message);
    }
  }
  return all;
}

export function Composer({ conversation, isBusy }) {
  const draft = `draft.${conversation.id}`;
  const [text, setText] = useState(() => readPreference(draft, "", "sessionStorage"));
  const [files, setFiles] = useState([]);
  const [isOver, setIsOver] = useState(false);
  const area = useRef(null);
  const chooser = useRef(null);
  const change = (value) => {
    setText(value);
    writePreference(draft, value || null, "sessionStorage");
  };
  const attach = async (list) => setFiles(await withFiles(files, Array.from(list)));
  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${area.current.scrollHeight}px`;
  }, [text]);
  useLayoutEffect(() => {
    if (!matchMedia("(pointer: coarse)").matches) area.current.focus(); // a phone would show its keyboard
  }, []);
  useEffect(() => {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const onDrag = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setIsOver(event.type === "dragover");
      if (event.type === "drop") attach(event.dataTransfer.files);
    };
    const kinds = ["dragover", "dragleave", "drop"];
    kinds.forEach((kind) => addEventListener(kind, onDrag));
    return () => kinds.forEach((kind) => removeEventListener(kind, onDrag));
  }, [files]);
  const choose = () => {
    chooser.current.value = ""; // the same file again is a change
    chooser.current.click();
  };
  const isEmpty = !text.trim() && !files.length;
  const submit = (event) => {
    event.preventDefault();
    if (isBusy || isEmpty) return;
    send(text.trim(), files);
    change("");
    setFiles([]);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  const onPaste = (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach(event.clipboardData.files);
  };
  return html`<form aria-label="Write" class=${isOver ? "composer over" : "composer"} onSubmit=${submit}>
    <${Files} files=${files} onRemove=${(index) => setFiles(files.filter((_, other) => other !== index))} />
    <div class="line">
      <input ref=${chooser} type="file" multiple hidden onChange=${(event) => attach(event.target.files)} />
      <${IconButton} icon="attach" label="Attach text files" onClick=${choose} />
      <textarea
        id="message"
        ref=${area}
        rows="1"
        placeholder="Write a message"
        aria-label="Message"
        value=${text}
        onInput=${(event) => change(event.target.value)}
        onKeyDown=${onKeyDown}
        onPaste=${onPaste}
      ></textarea>
      ${isBusy
        ? html`<button type="button" class="go" title="Stop (Esc)" aria-label="Stop" onClick=${stop}><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="go" title="Send (Enter)" aria-label="Send" disabled=${isEmpty}><${Icon} name="send" /></button>`}
    </div>
  </form>`;
}
