// The chat page of `rung serve`: ES modules without a build step.
//
//   main      begins: draws the page, opens the conversation of the address, asks the server for its models
//   state     what is shown; components draw it again when it changes
//   chat      what a person can do, and the answers that are written
//   conversation, storage     a tree of messages as plain data; IndexedDB and localStorage
//   server, options           the HTTP API and its failures in plain words; what each option does
//   app, list, thread, composer, settings, dialogs, markdown, ui      components
//
import { App } from "./app.js";
import { connect, openConversation, startConversation } from "./chat.js";
import { state, update } from "./state.js";
import * as storage from "./storage.js";
import { html, render } from "./ui.js";

const fromAddress = () => {
  const id = location.hash.slice(1);
  return id ? openConversation(id) : startConversation();
};

addEventListener("popstate", fromAddress);
storage.onChangeElsewhere(async (id) => {
  update({ heads: await storage.readHeads() });
  if (id === state.conversation.id) await openConversation(id);
});

await fromAddress();
update({ heads: await storage.readHeads() });
render(html`<${App} />`, document.getElementById("app"));
connect();
