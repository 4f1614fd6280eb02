"Pictures: the same bytes everywhere, hostile texts, nothing to draw, and eyes or printers without colour."

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise, product

import pandas as pd
import pytest
from doubles.sweeps import questions

from merlin.cases import Answer, Case
from merlin.errors import ConfigError
from merlin.figures import FIGURES
from merlin.judging import Outcome, Run, summary
from merlin.plots import (
    SHADES,
    heatmap,
    kind_bars,
    latency_plot,
    leg_recall,
    lines,
    rank_change,
    shorten,
    styled,
    svg_text,
)

SVG = '{http://www.w3.org/2000/svg}'
SCRIPT = """
import sys
from doubles.sweeps import questions
from merlin.plots import leg_recall, svg_text
sys.stdout.write(svg_text(leg_recall(questions())))
sys.stderr.write(str('matplotlib.pyplot' in sys.modules))
"""


def frame_of(settings):
    "A sweep's frame with made-up figures."
    rows = []
    for boost, recency, stale in settings:
        value = 0.8 - 0.05 * abs(boost - 1) - recency * stale
        row = {'boost': boost, 'recency': recency, 'stale': stale, 'cases': 30}
        for f in FIGURES:
            row |= {f: value, f'{f} low': value - 0.1, f'{f} high': value + 0.1}
        rows.append(row)
    return pd.DataFrame(rows)


FRAME = frame_of(product((1, 0, 2), (0.05, 0, 0.2), (0.5, 1)))


def run_of(ranks, question=lambda n: f'question {n}'):
    "A run with these ranks."
    cases = [Case(question(n), (Answer('a.md'),), 'how-to') for n in range(len(ranks))]
    return Run(tuple(Outcome(c, c.q, r, r, (), (), (False,)) for c, r in zip(cases, ranks, strict=True)), True)


def texts(figure):
    "Every text of a picture, read from its SVG."
    return [''.join(t.itertext()) for t in ET.fromstring(svg_text(figure)).iter(f'{SVG}text')]


def test_a_picture_is_the_same_in_every_process_and_under_anybodys_settings(tmp_path):
    (tmp_path / 'matplotlibrc').write_text('font.size: 20\nsvg.fonttype: path\naxes.facecolor: red\n')
    got = []
    for seed, extra in (('1', {}), ('2', {'MATPLOTLIBRC': str(tmp_path / 'matplotlibrc')})):
        env = {**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': os.pathsep.join(sys.path), **extra}
        done = subprocess.run([sys.executable, '-c', SCRIPT], env=env, capture_output=True, text=True, check=True)
        assert done.stderr.endswith('False'), 'pyplot keeps every figure alive'
        got.append(done.stdout)
    assert got[0] == got[1] == svg_text(leg_recall(questions()))


def test_a_question_is_text_and_neither_mathematics_nor_markup():
    hostile = 'costs $5 or $\\frac{1}{2}$? <script>&amp;"\x1b[31m \u202e 停電'
    figure = rank_change(run_of([1], lambda n: hostile), run_of([3], lambda n: hostile))
    (shown,) = [t for t in texts(figure) if 'costs' in t]
    assert shown == shorten(hostile) and '<script>&amp;"\\u{1b}[31m' in shown


def test_a_long_list_of_moved_questions_is_cut_and_says_so():
    before, after = run_of([1] * 60, lambda n: f'{n} ' * 90), run_of([None] * 30 + [2] * 30, lambda n: f'{n} ' * 90)
    shown = texts(rank_change(before, after))
    assert any('60 worse' in t and 'the 24 that moved most are shown' in t for t in shown)
    assert sum('…' in t for t in shown) == 24


def test_labels_do_not_overlap():
    figure = rank_change(run_of([1] * 30, lambda n: f'{n} ' * 90), run_of([4] * 30, lambda n: f'{n} ' * 90))
    with styled():
        figure.draw_without_rendering()
        (ax,) = figure.axes
        boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(below.y1 <= above.y0 for below, above in pairwise(sorted(boxes, key=lambda b: b.y0)))
    assert min(b.x0 for b in boxes) >= 0, 'the longest label still fits'


def test_there_is_room_for_letters_that_the_measuring_font_does_not_have():
    def left(question):
        figure = rank_change(run_of([1], lambda n: question), run_of([2], lambda n: question))
        with styled():
            figure.draw_without_rendering()
        return figure.axes[0].get_position().x0

    assert left('停' * 28) == pytest.approx(left('W' * 28), abs=0.01) and left('停' * 28) > left('a' * 28) + 0.05


def test_the_marks_are_where_the_settings_are_or_the_title_says_where():
    chosen = int(FRAME[(FRAME.boost == 1) & (FRAME.recency == 0) & (FRAME.stale == 0.5)].index[0])
    other = int(FRAME[(FRAME.boost == 1) & (FRAME.recency == 0) & (FRAME.stale == 1)].index[0])
    assert {'present', 'chosen'} <= set(texts(heatmap(FRAME, 'boost', 'recency', 'mrr', chosen)))
    assert 'present = chosen' in texts(heatmap(FRAME, 'boost', 'recency', 'mrr', 0))
    assert 'with stale 0.5; best tried is at stale 1' in texts(heatmap(FRAME, 'boost', 'recency', 'mrr', 0, other))
    assert 'with stale 1; present is at stale 0.5' in texts(lines(FRAME, 'boost', 'mrr', 'recency', other))


def test_every_tried_setting_of_a_plane_shows_its_number_and_interval():
    shown = texts(heatmap(FRAME, 'boost', 'recency', 'hit@1'))
    assert sum(t.startswith('0.') and len(t) == 5 for t in shown) == 9 == sum(t.startswith('[0.') for t in shown)


@pytest.mark.parametrize(
    'draw',
    [
        lambda: heatmap(FRAME.iloc[:1], 'boost', 'recency', 'mrr', 0),
        lambda: heatmap(frame_of([(1, 0.05, 0.5), (0, 0, 0.5), (2, 0, 0.5)]), 'boost', 'recency', 'mrr'),
        lambda: lines(FRAME.iloc[:1], 'boost', 'mrr', by='recency', chosen=0),
        lambda: rank_change(run_of([]), run_of([])),
        lambda: rank_change(run_of([1, None]), run_of([1, None])),
        lambda: kind_bars(summary(run_of([]))),
        lambda: kind_bars(summary(run_of([1]))),
        lambda: leg_recall([]),
        lambda: leg_recall(questions(tune=1, held=0)),
        lambda: latency_plot([]),
        lambda: latency_plot(questions(tune=1, held=0)),
    ],
)
def test_little_or_nothing_to_draw_is_a_picture_too(draw, recwarn):
    assert ET.fromstring(svg_text(draw())).tag == f'{SVG}svg'
    assert [str(w.message) for w in recwarn] == []


def test_an_unknown_axis_or_figure_is_named():
    with pytest.raises(ConfigError, match="unknown axis 'recencey'; did you mean 'recency'"):
        lines(FRAME, 'recencey', 'mrr')
    with pytest.raises(ConfigError, match="unknown figure 'hit@5'"):
        heatmap(FRAME, 'boost', 'recency', 'hit@5')


def luminance(rgb):
    "Relative luminance of a colour (WCAG 2.2)."
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb[:3]]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def test_the_scale_runs_from_dark_to_light_and_its_numbers_can_be_read():
    greys = [luminance(SHADES(n / 100)) for n in range(101)]
    assert greys == sorted(greys)
    contrast = [1.05 / (g + 0.05) if n < 50 else (g + 0.05) / 0.05 for n, g in enumerate(greys)]
    assert min(contrast) > 4.0
