"""The part of a reply that counts as the program."""

from __future__ import annotations

import ast
import sys
import textwrap
import threading
import warnings
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena_malt.reply import MAX_CODE_CHARS, extract_code
from tests.growth import is_linear
from tests.thorough import THOROUGH

CODE = "def process_graph(graph_data):\n    return {}\n"
OTHER = "def process_graph(graph_data):\n    return None\n"
DOCSTRING = '''def process_graph(graph_data):
    """Use it so:

    ```
    process_graph(g)
    ```
    """
    return {}'''
TAGGED_DOCSTRING = DOCSTRING.replace("    ```\n    pro", "    ```python\n    pro")
HELPERS = f"import os\nimportant = 1\n\n\ndef helper():\n    return 2\n\n\n{CODE}\nlast = 3"

#: a program with reasoning markers in its strings and comments
MARKED = f"x = '</think> <think>'  # </reasoning>\n{CODE}"
#: a program with reasoning markers only in its strings
QUOTED = f"é = '</think>', f'{{1}} </thinking>'; y = 'a' '</reasoning>'\n{CODE}"

FOUND = {
    "tagged": (f"```python\n{CODE}```", CODE),
    "untagged": (f"```\n{CODE}```", CODE),
    "other tag": (f"```Py\n{CODE}```", CODE),
    "tag with a note": (f'```python title="a.py"\n{CODE}```', CODE),
    "tildes": (f"~~~python\n{CODE}~~~", CODE),
    "long fence": (f"`````python\n{CODE}`````", CODE),
    "between sentences": (f"Here it is:\n\n```python\n{CODE}```\nI hope it works.", CODE),
    "carriage returns": (f"```python\n{CODE}```".replace("\n", "\r\n"), CODE),
    "never closed": (f"Sure.\n```python\n{CODE}", CODE),
    "never closed and then another": (f"```python\n{OTHER}\n```python\n{CODE}```", CODE),
    "the last of two": (f"```python\n{OTHER}```\nBetter:\n```python\n{CODE}```", CODE),
    "the last that defines it": (f"```python\n{CODE}```\nRun:\n```\nprocess_graph(g)\n```", CODE),
    "not a mention": (f"```python\n{CODE}```\n```python\nprocess_graph == 1\n```", CODE),
    "helpers and imports": (f"```python\n{HELPERS}\n```", HELPERS),
    "in a list": ("1. So:\n   ```python\n" + textwrap.indent(CODE, "   ") + "   ```", CODE),
    "behind a word": (f"Thought: easy\nAction: ```python\n{CODE}```", CODE),
    "in a wrapper": (f"````markdown\nLook:\n```python\n{CODE}```\n````", CODE),
    "in a wrapper of its own length": (f"```markdown\n```python\n{CODE}```\n```", CODE),
    "fences in a docstring": (f"```python\n{DOCSTRING}\n```", DOCSTRING),
    "tagged fences in a docstring": (f"```python\n{TAGGED_DOCSTRING}\n```", TAGGED_DOCSTRING),
    "tildes in backticks": (
        f"```python\nx = '''\n~~~\n'''\n{CODE}```",
        f"x = '''\n~~~\n'''\n{CODE}",
    ),
    "fence glued to the end": (f"```python\n{CODE.rstrip()}```", CODE),
    "fence glued to the end, blanks after it": (f"~~~\n{CODE.rstrip()} ~~~ \n\n", CODE),
    "indented, fence glued to the end": (
        "1. ```python\n" + textwrap.indent(CODE.rstrip(), "   ") + "```",
        CODE,
    ),
    "in a quotation": (
        textwrap.indent(f"So:\n```python\n{CODE}\nx = 1\n```\n", "> ", lambda _: True),
        f"{CODE}\nx = 1",
    ),
    "in a quotation without blanks": (
        textwrap.indent(f"```python\n{CODE}```\n", ">") + "Done.",
        # CommonMark removes one space after the quote marker
        CODE.replace("    return", "   return"),
    ),
    "bare": (CODE, CODE),
    "lambda": ("```python\nprocess_graph = lambda g: {}\n```", "process_graph = lambda g: {}"),
    "annotated": (
        "```python\nprocess_graph: object = dict\n```",
        "process_graph: object = dict",
    ),
    "asynchronous": (
        "```\nasync def process_graph(g): ...\n```",
        "async def process_graph(g): ...",
    ),
    "under a condition": (
        f"```python\nif True:\n{textwrap.indent(CODE, '    ')}```",
        f"if True:\n{textwrap.indent(CODE, '    ')}",
    ),
    "not valid, so that its error is shown": (
        "```python\ndef process_graph(g):\n    return (\n```",
        "def process_graph(g):\n    return (",
    ),
    "invalid escape": (
        "```python\ndef process_graph(g): return '\\d'\n```",
        "def process_graph(g): return '\\d'",
    ),
    "behind a thought": (f"<think>```python\n{OTHER}```</think>\n```python\n{CODE}```", CODE),
    "behind a thought that was not opened": (
        f"```python\n{OTHER}``` is wrong.</think>```python\n{CODE}```",
        CODE,
    ),
    "behind a thought that was cut off": (f"```python\n{OTHER}\n</think>\n```\n{CODE}```", CODE),
    "before a thought that is not closed": (
        f"```python\n{CODE}```\n<think>```python\n{OTHER}```",
        CODE,
    ),
    "bare, behind a thought": (f"<thinking>hm</thinking>{CODE}", CODE),
    "with markers in it": (f"```python\n{MARKED}```", MARKED),
    "bare, with markers in its texts": (QUOTED, QUOTED),
    "bare, behind a comment that ends a thought": (f"{OTHER}# no</think>\n{CODE}", f"\n{CODE}"),
    "bare, behind a text that ends a thought": (
        f"{OTHER}x = '''\n</think>\n{CODE}# '''",
        f"\n{CODE}# '''",
    ),
    "with markers in it, behind thoughts": (
        f"<think>```python\n{OTHER}```</think> So. </think>```python\n{MARKED}```",
        MARKED,
    ),
    "in a quotation, behind a thought": (
        textwrap.indent(f"<think>x</think>\n```python\n{CODE}\nx = 1\n```\n", "> ", lambda _: True),
        f"{CODE}\nx = 1",
    ),
}

REFUSED = {
    "empty": "",
    "prose": "I cannot do that.",
    "prose about it": "I would define process_graph so that it counts.",
    "no function": "```python\nx = 1\n```",
    "another function": "```python\ndef process(graph): ...\n```",
    "a longer name": "```python\ndef process_graphs(graph): ...\n```",
    "a call": "```python\nprint(process_graph)\n```",
    "a comparison": "```python\nprocess_graph == 1\n```",
    "declared only": "```python\nprocess_graph: int\n```",
    "a method": "```python\nclass A:\n    def process_graph(self): ...\n```",
    "an inner function": "```python\ndef f():\n    def process_graph(g): ...\n```",
    "in a text": '```python\nx = """\ndef process_graph(g): ...\n"""\n```',
    "bare and not valid": "def process_graph(g) return 1",
    "bare with a sentence": f"Here you are:\n{CODE}",
    "another language": "```json\n{}\n```",
    "too long": f"```python\n{CODE}x = '{'x' * MAX_CODE_CHARS}'\n```",
    "in a thought alone": f"<think>```python\n{CODE}```</think> I cannot do that.",
    "in a thought that is not closed": f"<think>```python\n{CODE}```",
    "before the end of a thought": f"```python\n{CODE}```\nNo.</reasoning>",
    "cut off by the end of a thought": f"```python\n{CODE}\n</think>\nI cannot do that.",
    "bare, with the end of a thought in a comment": f"{CODE.rstrip()} # wrong</think>\n",
    "bare, with the end of a thought in a docstring": CODE.replace(
        "return", "'''\n    </think>\n    '''; return"
    ),
    "half a surrogate pair": f"```python\n{CODE}# \ud800\n```",
}


@pytest.mark.parametrize("name", FOUND)
def test_program_is_found_in_a_reply(name):
    reply, code = FOUND[name]
    assert extract_code(reply).rstrip("\n") == code.rstrip("\n")


@pytest.mark.parametrize("name", REFUSED)
def test_reply_without_a_program_is_refused_with_a_reason(name):
    with pytest.raises(ReplyRefused) as refused:
        extract_code(REFUSED[name])
    reason = str(refused.value)
    assert reason
    assert "\n" not in reason
    assert len(reason) < 300


def read(reply):
    """Return the program of a reply, or the reason why the reply is refused."""
    try:
        return extract_code(reply)
    except ReplyRefused as refused:
        return str(refused)


MANY = 30_000
#: texts that are cut to various lengths; a pair is a text to cut and an end that always follows
HUGE: dict[str, str | tuple[str, str]] = {
    "backticks": "`" * 4 * MANY,
    "backticks before a tag": ("`" * 4 * MANY, "python"),
    "tildes": "~" * 4 * MANY,
    "fences": "```\n" * MANY,
    "opening fences": "```python\n" * (MANY // 2),
    "opening fences around a program": ("```python\n" * (MANY // 2), "class A:\n  " + CODE),
    "classes instead of programs": "```python\nclass A:\n  def process_graph(): 0\n```\n" * 3_000,
    "programs in one text": "```python\n'''\n" + "def process_graph(): 0\n```\n" * 5_000,
    "blanks": " " * 4 * MANY,
    "lines": "\n" * 4 * MANY,
    "carriage returns": "\r" * 4 * MANY,
    "blanks before a name": (" " * 4 * MANY, "process_graph"),
    "colons": "process_graph:" + ":" * 4 * MANY,
    "mixed marks": "`~" * 2 * MANY,
    "quotes": "> " * 2 * MANY,
    "thoughts": f"```python\n{CODE}```</think>" * 1_500,
    "programs in thoughts": (f"<think></think>x```python\n{CODE})\n```" * 1_500, "</think>"),
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_reply_is_parsed_in_linear_time(name):
    huge = HUGE[name]
    text, end = huge if isinstance(huge, tuple) else (huge, "")
    assert len(read(text + end)) <= MAX_CODE_CHARS
    assert is_linear(lambda size: read(text[:size] + end), len(text))


DEEP = {
    "parentheses": "(" * 30_000,
    "closed parentheses": "(" * 30_000 + ")" * 30_000,
    "signs": "-" * 90_000 + "1",
    "negations": "not " * 20_000 + "1",
    "attributes": "a" + ".a" * 40_000,
    "calls": "a" + "()" * 40_000,
    "sums": "1+" * 40_000 + "1",
    "powers": "1**" * 30_000 + "1",
    "lambdas": "lambda:" * 12_000 + "1",
    "conditions": "1 if 1 else " * 8_000 + "1",
    "elifs": "if 1:pass\n" + "elif 1:pass\n" * 7_000,
    "indents": "\n".join(" " * depth + "if 1:" for depth in range(400)),
    "formatted": "f'{" * 30_000,
    "null": "\0" * 90_000,
}


@pytest.mark.parametrize("name", DEEP)
def test_program_too_deep_for_the_parser_is_still_accepted(name):
    # the program is accepted here, and fails when it runs
    code = f"{CODE}\nx = {DEEP[name]}"
    assert extract_code(f"```python\n{code}\n```").startswith(CODE)


def test_threads_do_not_change_the_warning_filters(request):
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    filters = list(warnings.filters)
    reply = FOUND["invalid escape"][0]
    threads = [
        threading.Thread(target=lambda: [extract_code(reply) for _ in range(50)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == filters


lines = st.sampled_from(
    [
        "```",
        "```python",
        "~~~",
        "~~~py",
        "  ```",
        "````",
        "text",
        "x = 1",
        '"""',
        "",
        "`",
        "> ```",
        "def process_graph(g):",
        "    return {}",
        "process_graph = 1",
        "class A:",
        "\tpass",
        "((",
    ]
)


@THOROUGH
@given(st.lists(lines, max_size=30).map("\n".join) | st.text(max_size=300))
def test_any_reply_gives_a_program_or_a_reason(reply):
    assert "process_graph" in read(reply)


@THOROUGH
@given(
    before=st.text(alphabet="ab \n.:-", max_size=60),
    body=st.lists(st.sampled_from(["x = 1", "import re", "", "# note", "y = 'a`b'"]), max_size=6),
    fence=st.sampled_from(["```", "~~~", "`````"]),
    tag=st.sampled_from(["", "python", "py", "python3"]),
)
def test_fenced_program_is_extracted_completely(before, body, fence, tag):
    code = "\n".join([*body, *CODE.splitlines()])
    assume(ast.parse(code))
    assert extract_code(f"{before}\n{fence}{tag}\n{code}\n{fence}\nThat is all.") == code


@THOROUGH
@given(thought=st.lists(lines, max_size=12).map("\n".join), code=st.sampled_from([CODE, MARKED]))
def test_reasoning_does_not_change_the_program(thought, code):
    assert extract_code(f"<think>\n{thought}\n</think>\n```python\n{code}```") == code.rstrip()
