"""Parser of replies, each with one kubectl command line or a declaration (``declaration``).

The command is the text in the first pair of triple backticks, where a language tag is allowed.
Without backticks, the command is a bare line that starts with ``kubectl``, with its continuation
lines. The parser does not check whether the cluster accepts the command.

Fences follow CommonMark: they may have any info string, more than three backticks or tildes, and
may be in a list or a quotation. The parser also accepts these variants, which language models often
write:

- a fence after a word or at the end of the last line
- a block within one line, or within a longer block
- shell prompts (``$ kubectl``)
- an object ``{"command": ...}``

Ambiguous or incomplete replies are refused, so that only the intended command is ever run.
"""

from __future__ import annotations

import json
import re
import textwrap

from netarena.sdk import Found, ReplyRefused, command_line, is_kept, read_answer
from netarena_k8s.declaration import read_claim

#: maximum number of bytes of one command; Linux limits an argument to 128 KiB
MAX_COMMAND_BYTES = 65_536
#: maximum number of characters that are read after the reasoning
MAX_READ_CHARS = 262_144
#: Maximum number of lines that are tried as the end of a block, and of bare lines that are tried as
#: commands. Each try may parse a whole command, so without this limit a hostile reply could use
#: much processor time.
_MAX_TRIES = 4

_FORM = "put one kubectl command between triple backticks"
_FENCE = re.compile(r"`{3,}+|^[ \t>]*+(~{3,}+)", re.MULTILINE)
_INNER_FENCE = re.compile(r"^[ \t]*+(?:```|~~~)", re.MULTILINE)
_LIST_MARK = re.compile(r"[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*+")
_QUOTE_MARK = re.compile(r"[ \t]{0,3}>[ ]?")

_SHELLS = frozenset({"bash", "sh", "shell", "zsh", "ash", "dash", "console", "shell-session"})
_WRAPPERS = frozenset({"markdown", "md"})
#: language tags of code blocks that contain no command line
_DATA = frozenset({"json", "jsonc", "json5", "yaml", "yml", "python", "py", "toml", "xml", "diff"})
_TAGS = _SHELLS | _WRAPPERS | _DATA | {"kubectl", "text", "txt", "plaintext"}
_TAG = re.compile(r"[{.]*+([\w+#-]*+)")
#: Secondary shell prompts of continuation lines. A line that begins with ``>`` may also be a
#: redirection to a file. If the file would be named like an option, the reply is refused.
_SECOND_PROMPT = re.compile(r"^>[ \t]++", re.MULTILINE)
_OPTION_FILE = re.compile(r"^>[ \t]++-", re.MULTILINE)

#: kubectl's subcommands according to its help; a bare line with another word counts as prose
_VERBS = (
    "alpha|annotate|api-resources|api-versions|apply|attach|auth|autoscale|certificate|"
    "cluster-info|completion|config|cordon|cp|create|debug|delete|describe|diff|drain|edit|events|"
    "exec|explain|expose|get|help|kustomize|label|logs|options|patch|plugin|port-forward|proxy|"
    "replace|rollout|run|scale|set|taint|top|uncordon|version|wait"
)
_KUBECTL = rf"kubectl(?:[ \t]|\\\n)++(?:(?:{_VERBS})(?=[\s;|&\\]|\Z)|--?[A-Za-z])"
_COMMAND = re.compile(rf"(?:\$ )?{_KUBECTL}")
_BARE = re.compile(rf"^[ \t]*+(?:\$ )?(?={_KUBECTL})", re.MULTILINE)
#: language tag in front of a command on the same line as its opening backticks
_INLINE_TAG = re.compile(
    rf"(?:{'|'.join(sorted(_TAGS))})[ \t]++(?=(?:\$ )?kubectl[ \t]|\{{)", re.IGNORECASE
)
#: words that are common in sentences but rare in commands, and punctuation at the end of a sentence
_PROSE = re.compile(
    r"(?<![^ \t\n,])(?:the|an|this|that|these|those|it|its|I|you|we|they|is|are|was|were|be|been|"
    r"would|will|could|should|can|cannot|may|might|must|has|have|had|does|did|not|and|or|but|"
    r"because|since|which|what|how|why|to|of|with|without|instead|seems|looks|shows|needs|works|"
    r"gives|lets|allows|also|too)(?=[ \t\n,.;:!?]|\Z)|[\w)'\"][.!?:,]++\Z"
)
#: Separators of commands in a line, programs that usually process kubectl's output, and another
#: call of kubectl. Sentences seldom contain these.
_BETWEEN = re.compile(r"\|[|&]?+|;|&&|(?<![<>])&(?!>)|\n")
_PROGRAM = re.compile(
    r"\s*+(?:(?:awk|base64|bash|break|cat|cd|column|continue|curl|cut|diff|do|done|echo|egrep|elif|"
    r"else|esac|exit|export|false|fgrep|fi|for|grep|head|if|jq|kubectl|nl|nslookup|printf|python3?|"
    r"rev|sed|seq|sh|sleep|sort|tac|tail|tee|then|timeout|tr|true|uniq|until|wc|wget|while|xargs|"
    r"xxd|yq)(?![\w,.-])|[:!{}()\[\]./$_]|\w++=|\Z)"
)
_CALL = re.compile(r"\s*+(?:(?:do|then|else|time|!)[ \t]++)?kubectl\s")
_SUBSTITUTED = re.compile(r"[$<>]\([^()]*+\)|`[^`]*+`")
_REDIRECTED = re.compile(r"(?<!\d)\d*+(?:&>>?|>[>|&]?|<<?<?-?|<&|<>)[ \t]*+[^\s]++")
#: options without a value
_FLAG = re.compile(
    r"-[AhiqRtw]|-it|--(?:all|all-namespaces|allow-missing-template-keys|cascade|dry-run|force|"
    r"force-conflicts|help|ignore-not-found|interactive|list|local|now|overwrite|prune|quiet|record|"
    r"recursive|resolve|rm|save-config|server-side|show-labels|show-managed-fields|stdin|tty|"
    r"validate|wait|warnings-as-errors|watch|windows-line-endings)"
)
_OPTION = re.compile(r"--?[A-Za-z]")
#: Kind of word in a command -> its pattern. Quoted words and words with shell expansions have the
#: empty kind and are ignored.
_WORDS = (
    ("=", re.compile(r"[\w./-]+(?:=.*|-)")),
    ("", re.compile(r"[\W_]*__.*|.*\$.*")),
    ("/", re.compile(r"[A-Za-z][\w.-]*/[\w.:-]*\w")),
    ("w", re.compile(r"[A-Za-z0-9](?:[\w.,:-]*\w)?")),
)
_ONE = "w{0,2}|/+"
#: Verb that changes objects -> pattern of the kinds of words that may follow the verb in a bare
#: line. kubectl accepts any number of names, but names cannot be distinguished from the words of a
#: sentence.
_TAKES = {
    verb: re.compile(words)
    for verb, words in {
        **dict.fromkeys(("patch", "edit", "scale", "autoscale", "expose", "delete"), _ONE),
        **dict.fromkeys(("label", "annotate"), f"(?:{_ONE})=*"),
        **dict.fromkeys(("apply", "replace"), ""),
        "set": f"w(?:{_ONE})(?:=*|w)",
        "rollout": f"(?:w(?:{_ONE}))?",
        "create": "w{0,3}",
    }.items()
}
#: end of a bare line that shows that the command continues on the next lines
_GOES_ON = re.compile(r"(?:^|[\s;])(?:do|then|else|\{)\Z|\n[ \t]*\n")
_HALF = "the command is incomplete"


def read_reply(reply: str) -> str:
    """Return the command or declaration in a reply. Raises ReplyRefused with a reason."""
    text = reply.replace("\r\n", "\n")
    return read_answer(text, lambda start, end: _find(text, start, end))


def _find(text: str, start: int, end: int) -> Found[str]:
    part = text[start : min(end, start + MAX_READ_CHARS)]
    fence = _FENCE.search(part)
    found = _bare(part, cut=len(part) < end - start) if fence is None else _fenced(part, fence)
    return Found(found.value, start + found.start, start + found.end, found.whole, found.refused)


def _fenced(part: str, fence: re.Match[str]) -> Found[str]:
    """Return the command or declaration in the block that begins with ``fence``."""
    start, end, body, info = fence.start(), len(part), "", ""
    try:
        info, body, end = _Block(part, fence).read()
        if (said := read_claim(info, body)) is not None:
            return Found(said, start, end, whole=False)
        command = _checked(_meant(info, body))
        # A declaration may also be in a JSON object or after a shell prompt.
        if (said := read_claim("", command)) is not None:
            return Found(said, start, end, whole=False)
    except ReplyRefused as refused:
        return Found("", start, end, is_kept(body, part[start:end]), str(refused))
    return Found(command, start, end, is_kept(command, part[start:end]))


class _Block:
    """A fenced block of ``part``, read line by line."""

    def __init__(self, part: str, fence: re.Match[str]) -> None:
        run = fence[1] or fence[0]
        self._part, self._place = part, fence.end()
        self._mark, self._length = run[0], len(run)
        line = part.rfind("\n", 0, fence.start()) + 1
        before = part[line : fence.end() - len(run)]
        self._depth = before.count(">") if before.lstrip(" \t").startswith(">") else 0
        inner = self._unquote(before)
        self._indented = inner != "" and _LIST_MARK.fullmatch(inner) is not None

    def read(self) -> tuple[str, str, int]:
        """Return the info string, the body and the end position of the block. Raises ReplyRefused
        if the block has no end."""
        first, place = self._line(self._place)
        fence = self._mark * self._length
        if self._mark == "`" and fence in first:
            body = first[: first.index(fence)]
            return "", _untagged(body), self._place + len(body) + self._length
        lines: list[str] = []
        tries = 0
        while place < len(self._part):
            raw, after = self._line(place)
            line = self._unquote(raw)
            bare = line.strip(" \t")
            run = len(bare) - len(bare.lstrip(self._mark))
            if run >= self._length:
                if run < len(bare):
                    raise ReplyRefused(f"a code block starts inside another code block: {_FORM}")
                return first.strip(), self._joined(lines), place + len(raw)
            if bare.endswith(fence) and tries < _MAX_TRIES:
                tries += 1
                body = self._joined([*lines, line.rstrip(" \t")[: -self._length]])
                if len(body) <= MAX_COMMAND_BYTES and not command_line.lacks(body.strip()):
                    return first.strip(), body, place + len(raw)
            lines.append(line)
            place = after
        raise ReplyRefused(f"the code block has no closing backticks and may be truncated: {_FORM}")

    def _line(self, place: int) -> tuple[str, int]:
        """Return the line that starts at the offset ``place``, and the start of the next line."""
        end = self._part.find("\n", place)
        end = len(self._part) if end < 0 else end
        return self._part[place:end], end + 1

    def _unquote(self, line: str) -> str:
        for _ in range(min(self._depth, 8)):
            line = _QUOTE_MARK.sub("", line, count=1) if _QUOTE_MARK.match(line) else line
        return line

    def _joined(self, lines: list[str]) -> str:
        body = "\n".join(lines)
        return textwrap.dedent(body) if self._indented else body


def _untagged(line: str) -> str:
    """Return a command that is on the same line as its backticks, without a language tag. Raises
    ReplyRefused."""
    line = line.strip()
    if tag := _INLINE_TAG.match(line):
        return line[tag.end() :]
    first, _, rest = line.partition(" ")
    if first.lower() in _TAGS - {"kubectl"} and not rest.startswith("-"):
        raise ReplyRefused(f"the command must start on its own line, below the backticks: {_FORM}")
    return line


def _meant(info: str, body: str, *, inner: bool = False) -> str:
    """Return the command in a block. ``inner`` is true for a block within another block. Raises
    ReplyRefused."""
    if tagged := _INLINE_TAG.match(info):
        info = info[tagged.end() :]
    if _COMMAND.match(info):
        info, body = "", f"{info}\n{body}"
    marked = _TAG.match(info)
    tag = marked[1].lower() if marked else ""
    if len(info.split()) > 1 and tag not in _TAGS and not info.startswith("{"):
        raise ReplyRefused(f"the command must start on its own line, below the backticks: {_FORM}")
    command = body.strip()
    if len(command) > MAX_COMMAND_BYTES:
        return command
    if not inner and (tag in _WRAPPERS or _INNER_FENCE.match(command)) and tag not in _SHELLS:
        within = _FENCE.search(command)
        if within is not None:
            info, body, _ = _Block(command, within).read()
            return _meant(info, body, inner=True)
    if re.match(r'\{\s*+"', command) or (tag in _DATA and not _COMMAND.match(command)):
        return _object(command)
    command = _unprompted(command) if command_line.has_prompt(command) else command
    lines = command_line.read_lines(command)
    texts = [text for line in lines for text in line.texts]
    for fence in _INNER_FENCE.finditer(command):
        if not any(begin <= fence.start() and fence.end() <= end for begin, end in texts):
            raise ReplyRefused(f"the command itself contains a code block: {_FORM}")
    if command and all(command[line.start :].lstrip().startswith("#") for line in lines):
        raise ReplyRefused(f"the command is a comment: {_FORM}")
    return command


def _object(text: str) -> str:
    """Return the command in a JSON object whose only key is ``command``. Raises ReplyRefused for
    any other text."""
    try:
        pairs = json.loads(text, strict=False, object_pairs_hook=list)
    except (ValueError, RecursionError):
        pairs = None
    match pairs:
        case [("command", str(command))]:
            command = command.strip()
            return _unprompted(command) if command_line.has_prompt(command) else command
    raise ReplyRefused(f'the code block is neither a command nor {{"command": ...}}: {_FORM}')


def _unprompted(session: str) -> str:
    """Return the commands of a terminal session, without prompts and printed output."""
    try:
        return command_line.strip_prompts(_SECOND_PROMPT.sub("", session))
    except ValueError as error:
        raise ReplyRefused(f"{error}: {_FORM}") from None


def _bare(part: str, *, cut: bool) -> Found[str]:
    """Return the command in the first bare line that is not prose, with its continuation lines.

    ``cut`` is true if the reply continues after ``part`` with text that is not read. Raises
    ReplyRefused if there is no such line.
    """
    for tries, begin in enumerate(_BARE.finditer(part)):
        if tries == _MAX_TRIES:
            break
        start = begin.end()
        line = command_line.read_line(part[start : start + MAX_COMMAND_BYTES + 1])
        command = part[start : start + line.end].rstrip()
        plain = command_line.blank(command, line.texts)
        calls, others = _parts(command, line)
        if any(map(_PROSE.search, [*calls, *others])):
            continue
        end = start + len(command)
        keeps = is_kept(command, command, bare=True)
        if line.end > MAX_COMMAND_BYTES or (cut and start + line.end == len(part)):
            why = f"the command is too long; at most {MAX_COMMAND_BYTES} bytes are allowed"
            return Found("", start, end, keeps, why)
        if line.why or _GOES_ON.search(plain.strip()) or command_line.is_rest(part, end):
            why = line.why or "it continues on the next lines"
            return Found("", start, end, keeps, f"{_HALF} ({why}): {_FORM}")
        writes = [one for one in map(_writing, calls) if one is not None]
        if writes and (others or not all(writes)):
            why = f"the line may be a sentence, because kubectl does not accept its words: {_FORM}"
            return Found("", start, end, keeps, why)
        try:
            return Found(_checked(command), start, end, keeps)
        except ReplyRefused as refused:
            return Found("", start, end, keeps, str(refused))
    raise ReplyRefused(f"the reply contains no command: {_FORM}")


def _parts(command: str, line: command_line.Line) -> tuple[list[str], list[str]]:
    """Return the kubectl commands in a bare line, and the parts that do not look like a command."""
    texts = command_line.blank(command, line.texts)
    pieces, place = [], 0
    for begin, end in sorted([*line.comments, *line.documents]):
        pieces.append(texts[place:begin])
        place = max(place, end)
    plain = "".join([*pieces, texts[place:]]).replace("\\\n", "  ")
    first, *rest = _BETWEEN.split(_SUBSTITUTED.sub("__", plain))
    return (
        [first, *(one for one in rest if _CALL.match(one))],
        [one for one in rest if not _CALL.match(one) and not _PROGRAM.match(one)],
    )


def _writing(call: str) -> bool | None:
    """Return whether the words in a kubectl command fit its verb, or None if the verb does not
    change objects."""
    _, _, given = call.partition("kubectl")
    words: list[str] = []
    valued = False
    for word in _REDIRECTED.sub(" ", given).split():
        option = _OPTION.match(word) is not None
        if not option and word == "--" and words[:1] == ["create"]:
            break
        if not option and not valued:
            words.append(word)
        short = not word.startswith("--") and len(word) > 2
        valued = option and not short and "=" not in word and not _FLAG.fullmatch(word)
    takes = _TAKES.get(words[0]) if words else None
    if takes is None:
        return None
    kinds = (next((k for k, form in _WORDS if form.fullmatch(one)), "?") for one in words[1:])
    return takes.fullmatch("".join(kinds)) is not None


def _checked(command: str) -> str:
    if not command:
        raise ReplyRefused(f"the command is empty: {_FORM}")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ReplyRefused("the command is not valid Unicode text") from None
    if "\0" in command:
        raise ReplyRefused("the command contains a NUL character, which is not allowed")
    if size > MAX_COMMAND_BYTES:
        raise ReplyRefused(f"the command has {size} bytes; at most {MAX_COMMAND_BYTES} are allowed")
    if lacks := command_line.lacks(command):
        raise ReplyRefused(f"{_HALF} ({lacks}): {_FORM}")
    if _OPTION_FILE.search(command):
        raise ReplyRefused(
            f"a line begins with the shell prompt '>', followed by an option: {_FORM}"
        )
    return command
