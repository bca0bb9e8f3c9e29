// A conversation: a tree of messages, of which one path is shown. Plain data, as it is stored and exported.
//
//   conversation  {id, title, created, updated, system, shown, messages: {id: message}}
//   message       {id, parent, shown, created, role: "user" | "assistant", content, ...}
//     user        {files: [{name, text}]}
//     assistant   {model, reasoning, status: "waiting" | "writing" | "done" | "stopped" | "failed", error, result}
//
// `shown` of a message (or of the conversation, for the first one) is the id of the reply that is shown. Messages with
// the same parent are versions of one turn.

/** Return a name that nothing else has. `crypto.randomUUID` is only there over https. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(system = "") {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, system, shown: null, messages: {} };
}

/** Return the messages that are shown, first to last. */
export function shownPath(conversation) {
  const path = [];
  for (let id = conversation.shown; id; id = conversation.messages[id].shown) path.push(conversation.messages[id]);
  return path;
}

/** Return the versions of a turn, oldest first. */
export function versions(conversation, message) {
  return Object.values(conversation.messages).filter((each) => each.parent === message.parent);
}

/** Show a version of a turn, with the replies that were shown below it. */
export function show(conversation, message) {
  (conversation.messages[message.parent] ?? conversation).shown = message.id;
}

/** Add a message below `parent` (null for the first one) and show it. */
export function add(conversation, parent, fields) {
  const message = { id: newId(), parent, shown: null, created: Date.now(), ...fields };
  conversation.messages[message.id] = message;
  show(conversation, message);
  return message;
}

/** Remove a message without replies, and show the version before it. */
export function removeLeaf(conversation, message) {
  const others = versions(conversation, message).filter((each) => each !== message);
  delete conversation.messages[message.id];
  (conversation.messages[message.parent] ?? conversation).shown = others.at(-1)?.id ?? null;
}

/** Return the name that a list shows: the one it was given, or how its first message begins. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = shownPath(conversation)[0];
  const line = (first?.content || first?.files?.[0]?.name || "").trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || "New conversation";
}

/** Return a fence that is longer than any in a text. */
function fenceOf(text) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`{3,}/g), (found) => found[0].length));
  return "`".repeat(longest + 1);
}

/** Return what a model reads of a user's message: its files, each in a fence under its name, then what was typed. */
function contentOf(message) {
  const files = (message.files ?? []).map(({ name, text }) => {
    const fence = fenceOf(text);
    return `${name}:\n${fence}\n${text.endsWith("\n") ? text : `${text}\n`}${fence}`;
  });
  return [...files, message.content].filter(Boolean).join("\n\n");
}

/** Return the messages of a request whose answer will stand below `parent`. Answers without a word are left out. */
export function requestMessages(conversation, parent) {
  const messages = [];
  for (let message = conversation.messages[parent]; message; message = conversation.messages[message.parent]) {
    if (message.role === "user") messages.unshift({ role: "user", content: contentOf(message) });
    else if (message.content) messages.unshift({ role: "assistant", content: message.content });
  }
  if (conversation.system.trim()) messages.unshift({ role: "system", content: conversation.system });
  return messages;
}

/** Return what is shown of a conversation as Markdown. */
export function toMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.system.trim()) parts.push(`*System prompt:* ${conversation.system}`);
  for (const message of shownPath(conversation)) {
    const who = message.role === "user" ? "You" : message.model || "Assistant";
    parts.push(`## ${who}`, message.role === "user" ? contentOf(message) : message.content);
  }
  return `${parts.join("\n\n")}\n`;
}

const isText = (value) => typeof value === "string";
const isIn = (messages, id) => id === null || Object.hasOwn(messages, id);

function isMessage(value, id, messages) {
  const role = value?.role;
  if (value?.id !== id || !isText(value.content) || !Number.isFinite(value.created)) return false;
  if (!isIn(messages, value.parent) || !isIn(messages, value.shown)) return false;
  if (value.shown !== null && messages[value.shown]?.parent !== id) return false;
  if (role === "user") return (value.files ?? []).every((file) => isText(file?.name) && isText(file?.text));
  return role === "assistant";
}

/** Return a conversation read from a file as one of our own with only what we know, or null where it is none. */
export function imported(value) {
  const messages = value?.messages;
  if (!messages || typeof messages !== "object" || !isText(value.title) || !isText(value.system)) return null;
  if (!isIn(messages, value.shown)) return null;
  if (value.shown !== null && messages[value.shown]?.parent !== null) return null;
  const entries = Object.entries(messages);
  if (!entries.every(([id, message]) => isMessage(message, id, messages))) return null;
  const kept = entries.map(([id, message]) => {
    const { parent, shown, created, role, content, files } = message;
    const common = { id, parent, shown, created, role, content };
    if (role === "user") return [id, { ...common, files: (files ?? []).map(({ name, text }) => ({ name, text })) }];
    const model = isText(message.model) ? message.model : "";
    return [id, { ...common, model, reasoning: isText(message.reasoning) ? message.reasoning : "", status: "done" }];
  });
  return { ...newConversation(value.system), title: value.title, shown: value.shown, messages: Object.fromEntries(kept) };
}
