"""Which question `rung run` asks the starter: fifty short factual ones, at temperature 0, at each level of processor.

    python benchmarks/starter_questions.py [MODEL.gguf] [--levels native,haswell] [--only Japan,water] [--json FILE]

A level restricts what Numba may compile for, as docs/environment.md says; below AVX-512 VNNI products go through torch,
which is slow. `f32` decodes every weight. An answer is true if it has the word that it must have, and short if it ends
by itself within 40 tokens. A question that fails at one level is not asked at the levels after it. Printed first are
the questions that are true and short at every level; of these, one whose answers are the same everywhere is the best.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

#: The levels: variables of the process, and the format to load in.
LEVELS: dict[str, tuple[dict[str, str], str | None]] = {
    "native": ({}, None),
    "f32": ({}, "f32"),
    "no-vnni": ({"NUMBA_CPU_FEATURES": "-avx512vnni"}, None),
    "haswell": ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}, None),
    "nehalem": ({"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2"}, None),
}
MOST_TOKENS = 40
#: Each question with what a true answer says; several words: any of them.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "What is the capital of France?": ("Paris",),
    "What is the capital of Italy?": ("Rome",),
    "What is the capital of Japan?": ("Tokyo",),
    "What is the capital of Germany?": ("Berlin",),
    "What is the capital of Spain?": ("Madrid",),
    "What is the capital of England?": ("London",),
    "What is the capital of Russia?": ("Moscow",),
    "What is the capital of Egypt?": ("Cairo",),
    "What is the capital of Greece?": ("Athens",),
    "What is the capital of China?": ("Beijing",),
    "What is the largest planet in our solar system?": ("Jupiter",),
    "Which planet is closest to the Sun?": ("Mercury",),
    "Which planet is known as the Red Planet?": ("Mars",),
    "What is the name of our galaxy?": ("Milky Way",),
    "What is the chemical symbol for water?": ("H2O", "H₂O"),
    "What is the chemical symbol for gold?": ("Au",),
    "What is the largest ocean on Earth?": ("Pacific",),
    "What is the longest river in the world?": ("Nile",),
    "What is the highest mountain in the world?": ("Everest",),
    "What is the largest mammal?": ("blue whale",),
    "What is the fastest land animal?": ("cheetah",),
    "What is the largest desert in the world?": ("Sahara", "Antarctic"),
    "Who wrote Romeo and Juliet?": ("Shakespeare",),
    "Who wrote Hamlet?": ("Shakespeare",),
    "Who painted the Mona Lisa?": ("Leonardo",),
    "Who discovered gravity?": ("Newton",),
    "Who developed the theory of relativity?": ("Einstein",),
    "Who was the first president of the United States?": ("Washington",),
    "Who was the first person to walk on the Moon?": ("Armstrong",),
    "Who invented the telephone?": ("Bell",),
    "What gas do plants absorb from the air?": ("carbon dioxide",),
    "What gas do humans need to breathe?": ("oxygen",),
    "What is the freezing point of water in Celsius?": ("0", "zero"),
    "What is the boiling point of water in Celsius?": ("100",),
    "How many days are in a week?": ("7", "seven"),
    "How many months are in a year?": ("12", "twelve"),
    "How many legs does a spider have?": ("8", "eight"),
    "How many continents are there?": ("7", "seven"),
    "How many minutes are in an hour?": ("60", "sixty"),
    "How many sides does a triangle have?": ("3", "three"),
    "What is 2 + 2?": ("4", "four"),
    "What is the opposite of hot?": ("cold",),
    "What color is the sky on a clear day?": ("blue",),
    "What do bees make?": ("honey",),
    "What language is spoken in Brazil?": ("Portuguese",),
    "Which organ pumps blood through the body?": ("heart",),
    "What is the process by which plants make food?": ("photosynthesis",),
    "Which country is famous for the Eiffel Tower?": ("France",),
    "In which country are the pyramids of Giza?": ("Egypt",),
    "Gravity is the force that pulls objects toward what?": ("Earth", "center", "ground"),
}
CHILD = """
import json, sys
import rung
model = rung.load(sys.argv[1], format=sys.argv[2] or None)
for question in json.loads(sys.stdin.read()):
    answer = model.generate(question, temperature=0.0, max_tokens=int(sys.argv[3]))
    text = "".join(answer)
    print(json.dumps([question, text, answer.result["stop_reason"]]), flush=True)
"""


def answers(model: str, level: str, questions: list[str]) -> dict[str, tuple[str, bool]]:
    """Return the answer to each question at a level, and whether it ended by itself."""
    variables, format = LEVELS[level]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, model, format or "", str(MOST_TOKENS)],
        input=json.dumps(questions),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {question: (text.strip(), reason == "end") for question, text, reason in rows}


def is_true(question: str, answer: str) -> bool:
    """Tell whether an answer says what it must."""
    return any(word.lower() in answer.lower() for word in QUESTIONS[question])


def ask(model: str, levels: list[str], questions: list[str]) -> dict[str, list[tuple[str, bool]]]:
    """Return the answers to each question at the levels at which it was asked, in their order."""
    said: dict[str, list[tuple[str, bool]]] = {question: [] for question in questions}
    left = questions
    for level in levels:
        for question, answer in answers(model, level, left).items():
            said[question].append(answer)
        left = [question for question in left if is_good(question, said[question][-1])]
        print(f"{level}: {len(left)} of {len(questions)} true and short so far", file=sys.stderr, flush=True)
    return said


def is_good(question: str, answer: tuple[str, bool]) -> bool:
    """Tell whether an answer is true and ended by itself."""
    return is_true(question, answer[0]) and answer[1]


def main() -> None:
    """Ask, and print the best questions first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--json", default="")
    parser.add_argument("--only", default="", help="ask only questions with one of these words, divided by commas")
    options = parser.parse_args()
    levels = options.levels.split(",")
    questions = [one for one in QUESTIONS if any(word in one for word in options.only.split(","))]
    said = ask(options.model, levels, questions)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(said, file, indent=1, ensure_ascii=False)
    rows = []
    for question, found in said.items():
        good = sum(is_good(question, answer) for answer in found)
        different = len({text for text, _ in found})
        rows.append((-good, different, len(found[0][0]), question))
    for good, different, _, question in sorted(rows):
        print(f"{-good} of {len(levels)} true and short, {different} different: {question}")
        for text in dict.fromkeys(text for text, _ in said[question]):
            print(f"    {text[:160]!r}")


if __name__ == "__main__":
    main()
