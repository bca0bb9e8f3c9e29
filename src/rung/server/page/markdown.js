// Markdown of a model, which is hostile. The tokens of marked become elements of preact: no text is ever read as HTML, so
// HTML in an answer is shown as it is written. Pictures are links: loading one would tell another server of the reader.
import { Marked } from "./vendor/marked.js";
import { Component, html, useMemo, useRef, useState } from "./ui.js";

const marked = new Marked({ gfm: true, breaks: true });
/** How deep lists and quotes may lie in each other; what is deeper is shown as it is written. */
const DEEPEST = 24;

/** Copy a text; return whether that worked. Over http browsers have no clipboard but that of a selection. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

function Code({ text, lang }) {
  const [label, setLabel] = useState("Copy");
  const onClick = async () => {
    setLabel((await copy(text)) ? "Copied" : "Not copied");
    setTimeout(() => setLabel("Copy"), 1500);
  };
  const language = lang?.match(/^\S+/)?.[0] ?? "";
  return html`<div class="code">
    <div class="code-head">
      <span>${language}</span>
      <button type="button" class="copy" aria-live="polite" onClick=${onClick}>${label}</button>
    </div>
    <pre tabindex="0" role="region" aria-label=${`Code ${language}`.trim()}><code>${text}</code></pre>
  </div>`;
}

function Table({ token, depth }) {
  const cell = (name) => (one, index) =>
    html`<${name} align=${token.align[index]}>${elementsOf(one.tokens, depth)}<//>`;
  return html`<div class="wide" tabindex="0" role="region" aria-label="Table">
    <table>
      <thead><tr>${token.header.map(cell("th"))}</tr></thead>
      <tbody>${token.rows.map((row) => html`<tr>${row.map(cell("td"))}</tr>`)}</tbody>
    </table>
  </div>`;
}

function itemOf(item, depth) {
  const box = item.task && (item.checked ? "☑ " : "☐ ");
  return html`<li>${box}${elementsOf(item.tokens, depth)}</li>`;
}

function linkOf(href, content) {
  if (!/^(https?|mailto):/i.test(href)) return content;
  return html`<a href=${href} target="_blank" rel="noopener noreferrer">${content}</a>`;
}

const NAMED = { amp: "&", apos: "'", gt: ">", hellip: "…", lt: "<", mdash: "—", nbsp: "\u00a0", ndash: "–", quot: '"' };

/** Return a text without the entities of HTML (`&amp;`), which Markdown has too. */
function plain(text) {
  return text.replace(/&(?:#x([\da-f]{1,6})|#(\d{1,7})|(\w{2,6}));/gi, (entity, hexadecimal, decimal, name) => {
    const code = hexadecimal ? parseInt(hexadecimal, 16) : Number(decimal);
    if (name) return Object.hasOwn(NAMED, name) ? NAMED[name] : entity;
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : entity;
  });
}

const inside = (name) => (token, depth) => html`<${name}>${elementsOf(token.tokens, depth)}<//>`;

/** What stands for a token, by its type; what is not here is shown as it is written. */
const ELEMENTS = {
  blockquote: inside("blockquote"),
  br: () => html`<br />`,
  checkbox: () => null,
  code: ({ text, lang }) => html`<${Code} text=${text} lang=${lang} />`,
  codespan: ({ text }) => html`<code>${text}</code>`,
  def: () => null,
  del: inside("del"),
  em: inside("em"),
  escape: ({ text }) => text,
  heading: (token, depth) => inside(`h${Math.min(token.depth + 2, 6)}`)(token, depth), // below the page's own
  hr: () => html`<hr />`,
  html: ({ raw }) => (/^<br\s*\/?>$/i.test(raw.trim()) ? html`<br />` : raw),
  image: ({ href, text }) => linkOf(href, text || href),
  link: (token, depth) => linkOf(token.href, elementsOf(token.tokens, depth)),
  list: (token, depth) =>
    html`<${token.ordered ? "ol" : "ul"} start=${token.ordered ? token.start : null}>${token.items.map((item) => itemOf(item, depth))}<//>`,
  paragraph: inside("p"),
  space: () => null,
  strong: inside("strong"),
  table: (token, depth) => html`<${Table} token=${token} depth=${depth} />`,
  text: (token, depth) => (token.tokens ? elementsOf(token.tokens, depth) : plain(token.text)),
};

function elementsOf(tokens, depth) {
  return tokens.map((token) => {
    const element = Object.hasOwn(ELEMENTS, token.type) && depth < DEEPEST && ELEMENTS[token.type];
    return element ? element(token, depth + 1) : token.raw;
  });
}

/** Return the blocks of a text; what marked cannot read is one block of plain text. */
function blocksOf(text) {
  try {
    return marked.lexer(text);
  } catch {
    return [{ type: "unread", raw: text }];
  }
}

/** Return the blocks of a longer text whose beginning was read: only the last two of them may still change. */
function moreBlocks(text, known) {
  const kept = known.slice(0, -2);
  const beginning = kept.map(({ raw }) => raw).join("");
  return text.startsWith(beginning) ? [...kept, ...blocksOf(text.slice(beginning.length))] : blocksOf(text);
}

/** A block, drawn again only when its own text changes: of a long answer that is being written, the last one. */
class Block extends Component {
  shouldComponentUpdate(next) {
    return next.token.raw !== this.props.token.raw || next.isDone !== this.props.isDone;
  }

  render({ token }) {
    return elementsOf([token], 0);
  }
}

/** Show Markdown. `isDone` reads and draws all again, once: links may be defined below the text that has them. */
export function Markdown({ text, isDone }) {
  const known = useRef([]);
  const blocks = useMemo(() => {
    const source = text.replaceAll("\r\n", "\n");
    known.current = isDone ? blocksOf(source) : moreBlocks(source, known.current);
    return known.current.filter(({ type }) => type !== "space");
  }, [text, isDone]);
  return html`<div class="prose">
    ${blocks.map((token, index) => html`<${Block} key=${index} token=${token} isDone=${isDone} />`)}
  </div>`;
}
