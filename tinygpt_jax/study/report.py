"""One page on a run, after what is missing has been measured."""

from pathlib import Path

from tinygpt_jax.arguments import takes
from tinygpt_jax.errors import UserError
from tinygpt_jax.files import reserved, user_path, write_atomically
from tinygpt_jax.reporting.report import lacking, report_page
from tinygpt_jax.runs import named, read_record, run_line
from tinygpt_jax.study.options import ReportOptions, Tell
from tinygpt_jax.study.plot import Source, draw_run


@takes(ReportOptions)
def report(asked: ReportOptions) -> Path:
    """Writes one page of HTML on a run: its loss, curves, samples, tokens and heads, and how to repeat it.

        tg.report("runs/book", out="book.html")

    `tg.report_page` returns the page as text, from what is saved, and measures nothing.

    The arguments are the fields of `study.options.ReportOptions`; `tinygpt report --help` says what each does.

    Raises:
        UserError: it is no run, or the page cannot be written.
    """
    run, tell = named(asked.run), asked.tell
    read_record(run)  # raises before anything is measured
    tell(run_line(run))
    file = user_path(asked.out or run / "report.html")
    with reserved(file):
        if asked.measure:
            _complete(run, tell)
        write_atomically(file, report_page(run).encode())
    return file


def _complete(run: Path, tell: Tell) -> None:
    """Measures and draws what a report shows and the run lacks; the report itself says what cannot be measured."""
    if not (names := lacking(run)):
        return
    tell(f"measuring what is missing in {run}: {', '.join(names)}")
    try:
        for finding in draw_run(Source(run, run / "heads", tell)):
            tell(f"  saved {', '.join(map(str, finding.files))}")
    except UserError as error:
        tell(f"not measured: {error}")
