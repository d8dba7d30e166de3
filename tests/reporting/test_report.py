"""The report of a run: one file that loads nothing, shows what is saved, and says what is missing."""

import base64
import dataclasses
import io
import json
import re

import jax
import numpy as np
import pytest

from tests.figures.made import HOSTILE, results
from tests.pages import Page
from tinygpt_jax import cli
from tinygpt_jax.config import GPTConfig, TrainConfig
from tinygpt_jax.errors import UserError
from tinygpt_jax.figures.style import THEMES
from tinygpt_jax.lab.result import model_fingerprint
from tinygpt_jax.params import count_params, init_params
from tinygpt_jax.reporting import report
from tinygpt_jax.reporting.report import lacking, report_page
from tinygpt_jax.runs import write_record, write_weights
from tinygpt_jax.text import char_tokenizer

SAMPLE = 'a\tb </pre><script>alert(1)</script> & "\U0001f99c"\n\x00<b>\u202e'
CFG = TrainConfig(
    model=GPTConfig(vocab_size=40, block_size=8, n_layer=2, n_head=2, n_embd=8),
    data=("<b>", "a'\"&.txt"), steps=20, warmup_steps=3, eval_every=10,
)  # fmt: skip
PARAMS = init_params(jax.random.key(0), CFG.model)
FINGERPRINT = model_fingerprint(PARAMS, CFG.model)
KINDS = {"heads/heads-mean-loss": "heads", "heads/lens": "lens", "plots/training": "layers", "heads/<i>": "sets"}
LINES = [{"step": i + 1, "loss": 3 - i / 20, "grad_norm": 1.0, "learning_rate": 0.1} for i in range(20)]
SCORES = {"val_loss_se": 0.0321, "val_loss_per_char": 2.5, "val_bits_per_byte": 3.456}
LINES[10:10] = [{"step": 10, "val_loss": 2.7182, **SCORES, "tokens_per_second": 1234.5}]
LINES += [{"step": 20, "val_loss": 2.2222, **SCORES, "tokens_per_second": 4321.4}]


@pytest.fixture
def run(tmp_path):
    """A run directory made by hand, everything in it as hostile as it may be."""
    path = tmp_path / "a <run>"
    path.mkdir()
    tokenizer = char_tokenizer(SAMPLE + "".join(HOSTILE))
    facts = {
        "text_sha256": "<s>", "tokenizer_sha256": tokenizer.fingerprint, "train_tokens": 98765, "val_tokens": 4321,
        "versions": {"jax": "<script>", "python": "3"}, "device": "1 x </td>",
    }  # fmt: skip
    write_record(path, CFG, facts)
    write_weights(path / "model.safetensors", PARAMS, 20)
    tokenizer.save(path / "tokenizer.json")
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (path / "samples.txt").write_bytes(f"--- step 10 ---\nearly\n--- step 20 ---\n{SAMPLE}\n".encode())
    made = results(2)
    for stem, kind in KINDS.items():
        definition = dataclasses.replace(made[kind].definition, model=FINGERPRINT)
        dataclasses.replace(made[kind], definition=definition).save(path / stem)
    return path


@pytest.fixture
def undrawn(monkeypatch):
    """Without figures, which take most of the time."""
    picture = report.Picture(b"l", b"d", "said")
    monkeypatch.setattr(report, "_picture", lambda result: picture)


def flat(page):
    return " ".join(page.text.split())


def section(html, name):
    return Page(re.search(rf'<section id="{name}">.*?</section>', html, re.DOTALL)[0])


def loads(html):
    """Whatever a browser could be made to load or run."""
    page = Page(html)
    addresses = [v for _, a in page.tags for k, v in a.items() if k in ("src", "srcset", "href", "data", "action")]
    ours = ("data:image/png;base64,", "#")
    found = [v for v in addresses if not v.startswith(ours)] + [k for _, a in page.tags for k in a if k[:2] == "on"]
    found += [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object", "embed", "form", "base")]
    return found + re.findall(r"url\(|@import", html[: html.index("</style>")])


def test_the_page_loads_nothing_and_shows_what_is_saved(run):
    from PIL import Image

    html = report_page(run)
    html.encode()
    page = Page(html)
    assert loads(html) == []
    text = flat(page)
    lead = text[: text.index("Samples over")]
    for part in (
        "Run a <run>", f"{count_params(CFG.model):,} parameters", "2 layers of 8", "20 steps", "<b>, a'\"&.txt",
        "98,765 tokens", "4,321 tokens", "2.2222 ± 0.0321 nats per token", "3.456 bits per byte", "step 20",
        "4,321 tokens/s",
    ):  # fmt: skip
        assert part in lead
    assert section(html, "training").tables[0][1:] == [
        ["10", "2.7182 ± 0.0321", "2.5000", "3.456", "1,234"], ["20", "2.2222 ± 0.0321", "2.5000", "3.456", "4,321"],
    ]  # fmt: skip
    effects = results(2)["heads"]
    (rows,) = section(html, "heads").tables
    assert rows[2][1] == f"{effects.effect[1, 0]:+.4f} ± 0.0300"
    assert effects.definition.line() in section(html, "heads").text
    assert "Measured on other weights" not in text
    # both themes of each figure
    sources, images = page.named("source"), page.named("img")
    assert len(sources) == len(images) == len(KINDS)
    for light, dark in zip(images, sources, strict=True):
        assert dark["media"] == "screen and (prefers-color-scheme: dark)"
        assert light["alt"]
        for theme, address in (("light", light["src"]), ("dark", dark["srcset"])):
            with Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))) as image:
                corner = "#{:02X}{:02X}{:02X}".format(*image.convert("RGB").getpixel((0, 0)))
                assert corner == THEMES[theme].paper
                assert (str(image.width), str(image.height)) == (light["width"], light["height"])


def test_each_result_is_on_the_page_once(run, undrawn):
    made = results(2)
    attention, scores = made["attention"], made["scores"]  # of a whole window
    for stem, result in {
        "plots/attention": attention,
        "heads/attention": attention,
        "heads/scores-text": scores,
    }.items():
        dataclasses.replace(result, definition=dataclasses.replace(result.definition, model=FINGERPRINT)).save(
            run / stem
        )
    assert len(attention.tokens) >= CFG.model.block_size
    html = report_page(run)
    captions = re.findall("<figcaption>(.*?)</figcaption>", html)
    assert len(captions) == len(set(captions)) == len(KINDS) + 2
    assert html.count("heads/attention.json") == 0
    assert "Not in heads/, where this model has it: attribution" in flat(section(html, "readings"))
    titles = re.findall("<h3>(.*?)</h3>", html) + captions
    assert len(titles) == len(set(titles))


def test_the_attention_of_a_prompt_is_beside_that_of_a_window(run, undrawn):
    attention = results(2)["attention"]
    attention.save(run / "plots" / "attention")
    few = attention.patterns[..., :3, :3]
    dataclasses.replace(attention, patterns=few, tokens=attention.tokens[:3]).save(run / "heads" / "attention")
    html = report_page(run)
    assert (html.count("(plots/attention.json)"), html.count("(heads/attention.json)")) == (1, 1)
    (run / "plots" / "attention.json").unlink()
    attention.save(run / "heads" / "attention")
    assert report_page(run).count("(heads/attention.json)") == 1


def test_numbers_that_stand_in_a_map_are_folded_away_and_others_are_not(run, monkeypatch):
    assert report._picture(results(2)["heads"]).written
    assert not report._picture(results(12)["heads"]).written
    for written in (True, False):
        picture = report.Picture(b"l", b"d", "said", written)
        monkeypatch.setattr(report, "_picture", lambda result, picture=picture: picture)
        (around,) = section(report_page(run), "heads").around
        assert ("details" in around) == written


def test_on_a_phone_figures_are_whole_keys_unbroken_and_tables_scroll_by_themselves(run, undrawn):
    html = report_page(run)
    page = Page(html)
    assert len(page.tables) == 5
    assert all(around & {"wide", "facts"} for around in page.around)
    style = html[html.index("<style>") + 7 : html.index("</style>")]
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", style)
    own = {part.strip(): said for names, said in rules for part in names.split(",")}
    assert own["img"].startswith("display:block;max-width:100%")
    wider = [names for names, said in rules if "img" in names and re.search(r"(^|;)(max-|min-)?width:(?!100%)", said)]
    assert wider == ["\n.wide:focus img"]  # when it is asked for
    assert all(a.get("tabindex") == "0" for a in page.named("div") if a.get("class") == "wide" and "tabindex" in a)
    assert sum("tabindex" in a for a in page.named("div")) == len(page.named("img"))
    assert [names.strip() for names, said in rules if "overflow-wrap:normal" in said] == [".wide,th"]
    assert "nowrap" in own[".facts th"]
    assert "\n.wide,.facts{overflow-x:auto}" in style


def test_what_loads_or_runs_would_be_seen():
    for bad in (
        '<img src="https://x/y.png">', "<script>1</script>", '<p onclick="x()"></p>', '<a href="javascript:1">a</a>',
        '<link rel="stylesheet" href="#">',
    ):  # fmt: skip
        assert loads(f"<style></style>{bad}")


def test_a_policy_forbids_what_the_page_does_not_need(run, undrawn):
    import hashlib

    html = report_page(run)
    (policy,) = [m["content"] for m in Page(html).named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    style = html[html.index("<style>") + 7 : html.index("</style>")]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'", "img-src": "data:", "style-src": f"'sha256-{digest}'", "base-uri": "'none'",
        "form-action": "'none'",
    }  # fmt: skip
    assert html.index(policy.split(";")[0].replace("'", "&#x27;")) < html.index("<style>")
    assert not any("style" in attributes for _, attributes in Page(html).tags)  # which the policy would stop


def test_hostile_samples_and_tokens_are_text(run, undrawn):
    html = report_page(run)
    shown = section(html, "samples").text
    assert 'a\tb </pre><script>alert(1)</script> & "\U0001f99c"\nU+0000<b>U+202E' in shown
    assert [tag for tag, _ in section(html, "samples").tags].count("pre") == 2
    boxes = re.findall("<bdi>(.*?)</bdi>", html)
    assert boxes[:6] == ["a", "⇥", "b", "␣", "&lt;", "/"]
    assert {"\U0001f99c", "↵", "U+0000", "U+202E"} <= set(boxes)
    again = dict(section(html, "again").tables[0])
    assert again["jax"] == "<script>"
    assert again["device"] == "1 x </td>"
    assert again["weights"] == f"{FINGERPRINT}, of step 20"
    assert again["seed"] == "1337"


def test_settings_that_differ_are_marked(run, undrawn):
    page = section(report_page(run), "settings")
    model, training = ({row[0]: row[1:] for row in table} for table in page.tables)
    assert training["steps"] == ["20", "default: 600"]
    assert training["seed"] == ["1337", ""]
    assert model["n_layer"] == ["2", "default: 4"]
    assert model["vocab_size"] == ["40", ""]  # the tokenizer's
    assert "9 differ from the defaults" in page.text
    marked = [attributes for attributes in page.named("tr") if attributes.get("class") == "marked"]
    assert len(marked) == sum(bool(row[1]) for row in (*model.values(), *training.values())) == 9


def test_results_of_other_weights_are_marked(run, undrawn):
    assert "other weights" not in flat(Page(report_page(run)))
    write_weights(run / "model.safetensors", init_params(jax.random.key(1), CFG.model), 10)
    html = report_page(run)
    assert flat(Page(html)).count(f"Measured on other weights, {FINGERPRINT}, than those now in the run") == len(KINDS)
    assert "The weights are of step 10, the best validation saved of step 20" in flat(section(html, "again"))


def remove(*names):
    def change(run):
        for name in names:
            (run / name).unlink()

    return change


def write(name, content):
    return lambda run: (run / name).write_bytes(content)


def cut(name):
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:-20])


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (remove("metrics.jsonl"), "training", "metrics.jsonl is missing; train again to write it anew: tinygpt train"),
        (write("metrics.jsonl", b""), "training", "metrics.jsonl is empty"),
        (write("metrics.jsonl", b'{"step": 1, "loss": 2}\n'), "training", "metrics.jsonl has no validation"),
        (cut("metrics.jsonl"), "training", "1 lines of metrics.jsonl are cut off or damaged and left out"),
        (write("metrics.jsonl", b'7\n[]\n{}\n{"step": "x"}\n\xff\n'), "training", "5 lines of metrics.jsonl are cut"),
        (remove("plots/training.json"), "training", "plots/training.json is missing: tinygpt plot 'RUN'"),
        (
            remove("samples.txt"),
            "samples",
            "samples.txt is missing; training leaves samples as it goes, this writes one: tinygpt sample 'RUN'",
        ),
        (write("samples.txt", b"no heading"), "samples", "samples.txt has no sample"),
        (remove("samples.txt"), "tokenizer", "There is no sample to cut into tokens"),
        (remove("tokenizer.json"), "tokenizer", "The tokenizer cannot be shown: no tokenizer at "),
        (cut("tokenizer.json"), "tokenizer", "is not JSON"),
        (lambda run: char_tokenizer("xyz").save(run / "tokenizer.json"), "tokenizer", "not the one the run began with"),
        (remove("heads/heads-mean-loss.json"), "heads", "heads/heads-mean-loss.json is missing: tinygpt ablate 'RUN'"),
        (cut("heads/heads-mean-loss.json"), "heads", "heads/heads-mean-loss.json cannot be read"),
        (cut("heads/lens.json"), "readings", "heads/lens.json cannot be read"),
        (lambda run: None, "pieces", "Not in plots/, where this model has it: next-tokens, embedding, attention"),
        (remove("model.safetensors"), "again", "The weights cannot be read: model.safetensors is missing: tinygpt tr"),
        (cut("model.safetensors"), "again", "model.safetensors cannot be read"),
    ],
)
def test_what_is_missing_or_damaged_is_said_with_its_remedy(run, undrawn, change, name, said):
    change(run)
    html = report_page(run)
    assert said.replace("RUN", str(run)) in flat(section(html, name)).replace("’", "'")
    assert loads(html) == []


def test_numbers_that_are_none_are_dashes(run, undrawn):
    lines = [
        {"step": 1, "loss": float("nan"), "grad_norm": None},
        {"step": 2, "val_loss": None, "val_loss_se": float("inf"), "tokens_per_second": "fast"},
        {"step": 3, "val_loss": 1.5, "val_bits_per_byte": True, "tokens_per_second": 10**400},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = report_page(run)
    page = section(html, "training")
    assert page.tables[0][1:] == [["2", *"----"], ["3", "1.5000, error not known", *"---"]]
    assert "2 training losses and gradient norms in metrics.jsonl are not finite" in flat(page)
    assert "3 of 20 steps" in flat(Page(html))
    assert "1.5000 nats per token, - bits per byte, at step 3" in flat(Page(html))


def test_a_run_with_nothing_but_its_record(run):
    for file in sorted(run.rglob("*"), reverse=True):
        if file.name != "run.json":
            file.rmdir() if file.is_dir() else file.unlink()
    html = report_page(run)
    assert loads(html) == []
    assert "How good it became is not known" in flat(Page(html))
    assert flat(Page(html)).count("tinygpt ") >= 10  # remedies
    (run / "run.json").unlink()
    with pytest.raises(UserError, match=r"has no run\.json"):
        report_page(run)


def test_a_result_that_cannot_be_drawn_is_said(run):
    document = json.loads((run / "plots" / "training.json").read_text())
    (run / "plots" / "training.json").write_text(json.dumps({**document, "names": 5}))
    document["definition"]["unit"] = ["<u>"]
    (run / "heads" / "lens.json").write_text(json.dumps({**document, "kind": "LogitLens"}))
    (run / "heads" / "deep.json").write_text("[" * 100_000)
    html = report_page(run)
    assert "plots/training.json cannot be " in flat(section(html, "training"))
    readings = flat(section(html, "readings"))
    assert "heads/lens.json cannot be read" in readings
    assert "heads/deep.json cannot be read" in readings


def test_many_samples_and_validations_are_thinned(run, undrawn):
    (run / "samples.txt").write_text("".join(f"--- step {i} ---\nsample {i}\n" for i in range(1, 101)))
    many = "".join(json.dumps({**LINES[-1], "step": i}) + "\n" for i in range(1, 101))
    (run / "metrics.jsonl").write_text(many)
    html = report_page(run)
    shown = section(html, "samples").text
    assert "sample 1\n" in shown
    assert "sample 100" in shown
    assert "8 of 100 samples" in shown
    assert "The last 12 validations; 88 earlier ones" in section(html, "training").text


def test_the_command_writes_one_file(run, undrawn, capsys):
    assert cli.main(["report", str(run), "--no-measure", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(run / "report.html")}
    assert (run / "report.html").read_text() == report_page(run)
    (run / "samples.txt").write_text("--- step 1 ---\nother\n")
    out = run / "new" / "page.html"
    assert cli.main(["report", str(run), "--no-measure", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert "other" in out.read_text()
    assert not list(run.rglob("*.partial"))
    assert cli.main(["report", str(run / "none"), "--no-measure"]) == 1
    assert "none does not exist" in capsys.readouterr().err
    assert cli.main(["report", str(run), "--no-measure", "--out", str(run / "heads")]) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_a_page_on_standard_output_is_alone_there(run, undrawn, capfd, name):
    assert cli.main(["report", str(run), "--no-measure", "--out", name]) == 0
    out, err = capfd.readouterr()
    assert out == report_page(run)
    assert "the page is on standard output" in err
    assert cli.main(["report", str(run), "--no-measure", "--out", name, "--json"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"out is '{name}' and --json is given" in err


@pytest.mark.slow
def test_what_a_report_lacks_is_measured_first_and_what_cannot_be_stops_nothing(run, undrawn, capsys):
    made = results(2)["heads"]
    made.save(run / "plots" / "mlp-widths")  # of other weights
    assert {"plots/mlp-widths", "plots/positions", "heads/scores-text"} <= set(lacking(run))
    assert "plots/training" not in lacking(run)
    assert cli.main(["report", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{run / 'report.html'}\n"
    assert "no head lab: no file or directory '<b>'" in err  # the text is gone
    assert not {"plots/mlp-widths", "plots/positions"} & set(lacking(run))
    assert "heads/scores-text" in lacking(run)
    assert "heads/scores-text.json is missing: tinygpt heads" in flat(Page((run / "report.html").read_text()))


def test_nothing_is_measured_twice_and_no_failure_stops_the_report(run, undrawn, capsys, monkeypatch):
    from tinygpt_jax.study import report as reporting

    def refuse(source):
        raise UserError("no figures here")

    monkeypatch.setattr(reporting, "draw_run", refuse)
    assert cli.main(["report", str(run)]) == 0
    assert "not measured: no figures here" in capsys.readouterr().err
    monkeypatch.setattr(reporting, "lacking", lambda run: [])
    assert cli.main(["report", str(run)]) == 0
    assert capsys.readouterr().err == f"run {run}\n"


def scored(run, on, model=FINGERPRINT, **changes):
    made = results(2)["scores"]
    definition = dataclasses.replace(made.definition, model=model)
    dataclasses.replace(made, definition=definition, **changes).save(run / "heads" / f"scores-{on}")


def test_the_page_says_what_each_head_is_or_that_its_scores_do_not_say(run, undrawn):
    assert "What each head is" not in section(report_page(run), "heads").text  # the scores are missing, and said to be
    sure = {"induction": np.array([[0.1, 0.94], [0.1, 0.1]]), "induction_se": np.full((2, 2), 0.01)}
    none = {name: np.full((2, 2), 0.1) for name in ("previous_token", "first_token", "duplicate_token")}
    scored(run, "text", **none)
    scored(run, "repeats", **none, **sure)
    text = flat(section(report_page(run), "heads"))
    assert "A role: a score 50% of the way from chance to 1 or more" in text
    assert "0.1 induction, 0.94 ± 0.01 against 0.10 by chance" in text.replace("\xa0", " ")
    assert text.count("no clear role") == 3
    scored(run, "text", model="0" * 16, **none)
    text = flat(section(report_page(run), "heads"))
    assert "What each head is cannot be said: the scores are of different models" in text
    assert "no clear role" not in text


def test_the_page_says_the_order_that_its_figures_say(run, undrawn):
    page = flat(Page(report_page(run)))
    order = results(2)["heads"].closing()
    assert order[0].startswith("the largest effect first; each ")
    assert page.count(order[0]) == 2  # of the heads, and of the sets that have the same numbers
