# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A teaching kit: questions, exercises, a game and grades
#
# After this lesson, you can write questions, exercises and a game for a class, and grade the answers. The lesson takes about 25 minutes.
#
# Thirty students, one fusion, half an hour: who finds the best plan? This notebook is for those who teach with the others. The picture is the start of a game: nvFuser's plan for a fusion with one cut in a
# bad place. Everybody looks for a better plan and hands it in as a line of text. The grade depends on the bytes that the plan moves.
# Everything here runs on a laptop, and no answer is written down anywhere: the tool computes each one on demand.

# %%
import json
import tempfile
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
from IPython.display import display

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.teaching import predict, read_answers, read_questions, score

bank = read_questions("questions/13_teaching_kit.toml")


def game():
    """Return a fusion with two branches of one input and a hint in one of them."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float) for _ in range(2))
        a = fd.ops.exp(fd.ops.sub(x, y))
        b = fd.ops.segment_set(fd.ops.sin(fd.ops.mul(x, y)))
        fd.add_output(fd.ops.sum(a, dims=[1]))
        fd.add_output(fd.ops.mul(b, fd.ops.sum(a, dims=[1], keepdim=True)))
        fd.add_output(fd.ops.cos(a))
    return fd


sizes = [fl.spec((1024, 1024)) for _ in range(2)]
start = fl.segment(game(), sizes, name="start")
start

# %% [markdown]
# ## 1. A question in three lines
#
# `predict` asks, the reader answers below the question or skips it, and `reveal` compares; *Run All* reveals nothing before that. The
# answer is an expression, so it cannot be out of date: if the tool changes, the answer changes with it. Outdated answers are what usually
# ruins teaching notebooks.

# %%
question = bank.predict("How many segments does the plan with the fewest bytes have?", None)
question

# %%
best = fl.segment(game(), sizes, strategy="optimal", name="best")
first = question.reveal(len(best.segments))
first

# %% [markdown]
# You can ask for numbers, texts, yes or no, lists, sets and dicts of these; `within=0.1` accepts ten percent. What `question.show` prints
# is shown with the answer, and not before.
#
# The best part of an exercise is the mistake that everybody makes. A hint says what a reader who makes it overlooks; the reason is for all
# readers. Both are in a **question bank**, a file in the folder `questions`, because a reader sees the source of each cell. It also
# has, for each question, patterns that nothing above the answer may show, and a test looks for them.
#
# The next cell prints the entry of the question above. Then it shows the outcome for a reader who believes that fewer segments
# are always better, and for a reader whose prediction has the wrong type: such a prediction does not count as wrong, and the
# answer stays hidden.

# %%
print(Path("questions/13_teaching_kit.toml").read_text(encoding="utf-8").split("\n\n")[1])
display(bank.predict("How many segments does the plan with the fewest bytes have?", 1).reveal(len(best.segments)))
predict("How many segments does the start have?", "three").reveal(len(start.segments))

# %% [markdown]
# ## 2. Questions about any fusion
#
# Some questions make sense for every plan, so a loop can make a sheet of exercises.

# %% jupyter={"source_hidden": true}
# Defines `sheet(fd, inputs)`: questions with their answers, for any fusion.
def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


def sheet(fd, inputs):
    """Return questions about a fusion, each with its answer, for inputs of these sizes."""
    plan = fl.segment(fd, inputs)
    unfused = fl.segment(fd, inputs, strategy="unfused")
    crossing = {t.name for t in plan.segmented.crossing}
    asked = {
        "How many segments?": len(plan.segments),
        "Which scheduler accepts the first segment?": plan.segments[0].scheduler.value,
        "Which tensors pass between segments?": crossing,
        "How many times as many bytes does it move op by op?": round(moved(unfused) / moved(plan), 1),
    }
    if len(plan.segments) > 1:
        asked["Which op begins the second segment?"] = plan.segments[1].exprs[0].op.name
    return asked


pd.DataFrame({name: sheet(*fl.example(name, "full")) for name in ("softmax", "bias_gelu", "sum_broadcast_add")}).fillna("")

# %% [markdown]
# ## 3. A different exercise for everyone
#
# Each seed makes a different fusion, so neighbours cannot copy from each other.

# %%
def variant(seed):
    """Return a small random fusion and its sizes."""
    random = Random(seed)  # noqa: S311 - not used for security
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        y = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        for _ in range(3):
            x = getattr(fd.ops, random.choice(["exp", "sin", "tanh", "relu"]))(x)
            if random.random() < 0.5:
                x = fd.ops.sub(x, fd.ops.sum(x, dims=[random.randrange(2)], keepdim=True))
        fd.add_output(fd.ops.add(x, y) if random.random() < 0.5 else fd.ops.mul(x, fd.ops.sum(y, dims=[1], keepdim=True)))
    return fd, [fl.spec((random.choice([512, 2048]), random.choice([256, 4096])))] * 2


pd.DataFrame([sheet(*variant(seed)) for seed in range(6)]).rename_axis("seed")

# %% [markdown]
# **Predict:** over the seeds 0 to 19, what is the largest number of segments?

# %%
question = bank.predict("Most segments of the 20 variants", None)
question

# %%
counts = [len(fl.segment(*variant(seed)).segments) for seed in range(20)]
question.show(fl.segment(*variant(int(np.argmax(counts))), name="the longest"))
second = question.reveal(max(counts), within=0.4, facts={"counts": counts})
second

# %% [markdown]
# ## 4. Grading
#
# Answers are plain data, so they can come from a form, a chat or a file. These are three students' answers to the sheet of seed 3. An
# answer that does not fit the question, such as a word where a number is expected, is reported and not counted.

# %%
ANSWERS = """
{
  "Ada":   {"How many segments?": 2, "Which scheduler accepts the first segment?": "Reduction"},
  "Emmy":  {"How many segments?": 1, "How many times as many bytes does it move op by op?": 4.2},
  "Grace": {"How many segments?": "one", "Which tensors pass between segments?": []}
}
"""


def graded(answers, asked):
    """Return the outcome of each question, and what could not be read."""
    outcomes = []
    for text, answer in asked.items():
        given = answers.get(text)
        given = set(given) if isinstance(answer, set) and isinstance(given, list) else given
        outcomes.append(predict(text, given).reveal(answer, within=0.1))
    return score(*outcomes), [outcome.question for outcome in outcomes if outcome.unclear]


asked = sheet(*variant(3))
for student, answers in json.loads(ANSWERS).items():
    result, unread = graded(answers, asked)
    print(f"{student:6} {result.right} of {len(asked)} right", f"(not understood: {', '.join(unread)})" if unread else "")

# %% [markdown]
# ## 5. The game
#
# A hand-in is a list of groups of tensors, as JSON: text that is only read. A strategy that returns these groups rebuilds the plan, so
# every rule of nvFuser's schedulers applies. The grade is *bytes of the best plan / bytes of yours*.

# %%
def hand_in(plan):
    """Return a plan as one line of text."""
    return json.dumps([[e.outputs[0].name for e in s.exprs if not e.outputs[0].name.endswith("_replica")] for s in plan.segments])


def grade(text):
    """Return a grade between 0 and 1, and a sentence."""
    try:
        plan = fl.segment(game(), sizes, strategy=lambda fusion, schedulers: json.loads(text))
    except (fl.FuserLabError, json.JSONDecodeError) as error:
        return 0.0, str(error)
    alone = [segment.index for segment in plan.segments if segment.scheduler is None]
    if alone:
        return 0.0, f"no scheduler accepts segment {alone[0]}"
    return moved(best) / moved(plan), f"{len(plan.segments)} segments, {moved(plan):,} bytes"


line = hand_in(start)
print(line)
for name, text in {
    "start": line,
    "best": hand_in(best),
    "op by op": hand_in(fl.segment(game(), sizes, strategy="unfused")),
    "a group missing": json.dumps(json.loads(line)[1:]),
    "no JSON": "[[T4]]",
}.items():
    points, sentence = grade(text)
    print(f"{name:17} {points:.2f}  {sentence[:110]}")

# %% [markdown]
# To play with a mouse, open `explorer = fl.explore(start)` and edit the plan; `grade(hand_in(explorer.plan))` is then its grade.
#
# **Predict:** segments 0 and 1 of the start share only inputs; somebody glues them. What is the grade then? (Within 10 %.)

# %%
question = bank.predict("The grade with segments 0 and 1 glued", None)
question

# %%
glued = start.glue(0, 1)
third = question.reveal(grade(hand_in(glued))[0], within=0.1, facts={"glued": moved(glued), "start": moved(start)})
third

# %% [markdown]
# ## 6. Handouts
#
# Everything on show can be saved: pictures, pages without scripts, text, and code that makes the plan again. The archive opens on any
# machine, without Jupyter and without a network.

# %%
with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    for suffix in ("svg", "html", "txt", "py"):
        start.save(here / f"exercise.{suffix}")
    best.save(here / "solution.html")
    (here / "questions.txt").write_text("\n".join(sheet(game(), sizes)) + "\n", encoding="utf-8")
    bundle = here / "handout.zip"
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(here.glob("*.*")):
            if path != bundle:
                archive.write(path, path.name)
    with zipfile.ZipFile(bundle) as archive:
        for info in archive.infolist():
            print(f"{info.filename:16} {info.file_size:>8,} bytes")
        page = archive.read("exercise.html").decode()
print("loads something from elsewhere:", any(f"{name}='http" in page.replace('"', "'") for name in ("src", "href")))

# %% [markdown]
# ## 7. A course
#
# These are the lessons: their titles, how many questions each asks, and how many code cells it has.

# %% jupyter={"source_hidden": true}
# Lists the lessons.
course = []
for path in sorted(Path().glob("[0-9][0-9]_*.ipynb")):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    questions = sum(source.startswith("question = ") for source in code)
    course.append((path.stem, cells[0]["source"][0].lstrip("# "), questions, len(code)))
pd.DataFrame(course, columns=["lesson", "title", "questions", "code cells"]).style.set_properties(**{"text-align": "left"}).hide()

# %% [markdown]
# There are four ways through them:
#
# - **A lecture of 90 minutes**: 01 to 05, and 07, by [the plan of the course](../docs/course.md), which has an answer key.
# - **One hour**: 00, then 01, 02 and the game above.
# - **A compiler course** of six sessions: 01 + 02, 03 + 04, 05 + 06, 07 + 22, 08 + 23, and 12 as the exercise to hand in.
# - **People who work on nvFuser**: 03, 09, 11, 12, and their own issues.
#
# Lessons are notebooks with a text form in `tests/notebooks/text` (`jupytext`); the files in `notebooks/questions` are the key to their questions. Tests run each of them from top to bottom, so what you show tomorrow is
# what was true at the last commit: `make test PYTEST_ARGS=tests/notebooks`.
#
# ## Your turn
#
# Write a question whose answer surprised *you*, about a fusion of your own. It takes three lines, and an entry of a bank. For example:
# does the square of a sum need more segments than a sum of squares?
#
# `score(...).save("ada.json", "Ada")` writes a file to hand in, and `read_answers` puts the files of a class side by side: who answered,
# who was right, and the most frequent mistake.

# %%
display(score(first, second, third))
with tempfile.TemporaryDirectory() as folder:
    for name, guess in (("Ada", 2), ("Ben", 3), ("Cy", 3)):
        score(predict("How many segments?", guess).reveal(2)).save(f"{folder}/{name}.json", name)
    handed_in = read_answers(folder)
handed_in

# %% [markdown]
# ## Where to go next
#
# - [docs/api.md](../docs/api.md) documents `predict`, `reveal` and `score` under *Teach*; `CONTRIBUTING.md` says how to add a lesson to the
#   course.
# - `make pages` builds all lessons into a site that opens from disk. There the answers stay folded until a reader opens them.
# - What should a student be able to do in the end? [12_write_your_own_scheduler_rule](12_write_your_own_scheduler_rule.ipynb).
#
# **Words:** [Fusion](../docs/glossary.md#fusion "A graph of ops that is passed to the compiler as a whole.") · [Plan](../docs/glossary.md#plan "A fusion cut into segments, each with the scheduler that accepts it.") · [Rule](../docs/glossary.md#rule "A condition of a scheduler; a candidate that breaks it is refused.") · [Scheduler](../docs/glossary.md#scheduler "The part of nvFuser that decides whether a set of ops can be one kernel of its kind, and writes that kernel.") · [Segment](../docs/glossary.md#segment "A set of ops of a fusion that becomes one kernel.") · [Strategy](../docs/glossary.md#strategy "The method that cuts a fusion, such as bottom-up, top-down or optimal.")
