// The options of an answer, by the names that the API has for them, with what each does. A row is all that an option
// needs: the settings are drawn, checked and sent from here.

/** Return the entries of an input with one in each line. */
const lines = (text) => text.split("\n").filter(Boolean);

export const OPTIONS = [
  { name: "temperature", label: "Temperature", least: 0, most: 100,
    help: "How freely words are chosen. 0 takes the likeliest word every time; above 1 unlikely words come more often.",
  },
  { name: "top_p", label: "Top-p", least: 0, most: 1,
    help: "Choose among the likeliest words that have this share of all probability. 1 leaves none out.",
  },
  { name: "top_k", label: "Top-k", least: 0, most: 2 ** 31, isWhole: true,
    help: "Choose among this many of the likeliest words. 0 leaves none out.",
  },
  { name: "min_p", label: "Min-p", least: 0, most: 1,
    help: "Leave out words that are less likely than this share of the likeliest one. 0 leaves none out.",
  },
  { name: "repeat_penalty", label: "Repeat penalty", least: 0.001, most: 1000,
    help: "Above 1, words that were said lately come less often. 1 changes nothing.",
  },
  { name: "presence_penalty", label: "Presence penalty", least: -2, most: 2,
    help: "Above 0, words that the answer has already come less often, however often it has them.",
  },
  { name: "frequency_penalty", label: "Frequency penalty", least: -2, most: 2,
    help: "Above 0, words come less often the more often the answer has them.",
  },
  { name: "max_tokens", label: "Longest answer", least: 1, most: 2 ** 24, isWhole: true,
    help: "Tokens of an answer at most; a token is about three quarters of a word.",
  },
  { name: "seed", label: "Seed", least: 0, most: Number.MAX_SAFE_INTEGER, isWhole: true,
    help: "The same seed, options and messages give the same answer again. Without one each answer is drawn anew.",
  },
  { name: "stop", label: "Stop at", isText: true,
    help: "An answer ends before any of these texts, one a line.",
  },
];

/** Return the value of what was typed for an option: null for nothing. Raises RangeError with a sentence. */
export function valueOf(option, text) {
  if (option.isText) return lines(text).length ? lines(text) : null;
  if (!text.trim()) return null;
  const value = Number(text);
  if (!Number.isFinite(value) || value < option.least || value > option.most)
    throw new RangeError(`From ${option.least} to ${option.most.toLocaleString("en")}.`);
  if (option.isWhole && !Number.isInteger(value)) throw new RangeError("A whole number.");
  return value;
}

/** Return what stands in the input of an option. */
export const textOf = (option, value) => (value === undefined ? "" : option.isText ? value.join("\n") : String(value));
