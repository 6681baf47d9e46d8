"""Markers of thoughts that language models and agent frameworks use, in text and in metadata.

All code that looks for thoughts uses this table: the green agent's parser of replies
(``netarena.task.reasoning``), its client (``netarena.a2a.client``), and the baseline agent. To
support a new marker, add a row with its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

#: Names of tags around thoughts (``<think>`` … ``</think>``), in upper or lower case.
TAGS = (
    # DeepSeek R1, Qwen, GLM, Kimi K2, MiniMax, Nemotron, Granite 4 (parsers of SGLang and vLLM)
    "think",
    # Claude, if the prompt requests it; default of LocalAI
    "thinking",
    # EXAONE Deep; Gemma 4 through the Gemini API (NousResearch/hermes-agent#6149)
    "thought",
    # gpt-oss and Kimi K2 on Bedrock (LiteLLM)
    "reasoning",
    # Seed-OSS, according to LocalAI's table
    "seed:think",
    # MiniMax M3 (vLLM)
    "mm:think",
    # LongCat; both according to the table of mlx-lm
    "longcat_think",
    "think:opensource",
    # Claude, according to OpenClaw's table
    "antthinking",
    # models whose prompts request them (tables of several chat clients)
    "thoughts",
    "thought_process",
    "chain_of_thought",
    "inner_monologue",
    "internal_monologue",
    "internal_thoughts",
    "internal_reasoning",
    "thinking_process",
    "reasoning_process",
    "reasoning_content",
    # Reflection Llama 3.1 (SillyTavern/SillyTavern#2793)
    "reflection",
    # Hermes, according to NousResearch/hermes-agent
    "reasoning_scratchpad",
    "scratchpad",
)


class Pair(NamedTuple):
    """Markers around a thought: the opening text, and a pattern of the closing text.

    ``opens`` means that an unclosed opening marker counts. ``closes`` means that a closing marker
    counts without an opening marker, which may be in the prompt template. Both are false for
    markers that also occur in texts without thoughts.
    """

    opening: str
    closing: str
    opens: bool = True
    closes: bool = True


#: Case-sensitive markers.
PAIRS = (
    # Magistral 1.1 and later, Ministral (mistral-common; RooCodeInc/Roo-Code#8522)
    Pair("[THINK]", re.escape("[/THINK]")),
    # Kimi-VL (SGLang's parser "kimi")
    Pair("◁think▷", re.escape("◁/think▷")),
    # Cohere Command R7B and A Reasoning (llama.cpp)
    Pair("<|START_THINKING|>", re.escape("<|END_THINKING|>")),
    # Apertus, according to llama.cpp
    Pair("<|inner_prefix|>", re.escape("<|inner_suffix|>")),
    # OpenThoughts, Sky-T1 (Open WebUI)
    Pair("<|begin_of_thought|>", re.escape("<|end_of_thought|>")),
    # Gemma 4 (its model card; jundot/omlx#560)
    Pair("<|channel>thought", re.escape("<channel|>")),
    # MedGemma (ollama/ollama#15754)
    Pair("<unused94>thought", re.escape("<unused95>")),
    # according to the table of a Home Assistant agent (sbenodiz/ai_agent_ha#49)
    Pair("<|thinking|>", re.escape("</|thinking|>")),
    # gpt-oss: channels of the harmony format (scouzi1966/maclocal-api#121). The token that ends a
    # message also ends answers, of gpt-oss and of Phi
    Pair("<|channel|>analysis", re.escape("<|end|>"), closes=False),
    # Solar Open (LocalAI)
    Pair("<|think|>", re.escape("<|end|>"), closes=False),
    # thoughts that Open WebUI and Z.ai write into the text; the closing tag is ordinary HTML
    Pair('<details type="reasoning"', re.escape("</details>"), closes=False),
    # table of a client written in Go; also used as a heading in texts
    Pair("[REASONING]", re.escape("[/REASONING]"), opens=False, closes=False),
    # Open WebUI's default list; also used as a placeholder in texts
    Pair("<reason>", re.escape("</reason>"), opens=False, closes=False),
    # Granite 3.2 (vLLM's parser "granite"); these phrases also occur in ordinary English texts
    Pair("Here is my thought process:", r"Here(?: i|')s my response:", opens=False, closes=False),
    Pair("Here's my thought process:", r"Here(?: i|')s my response:", opens=False, closes=False),
)

#: Patterns of markers that start an answer; all text before them is a thought.
ANSWERS = (
    # gpt-oss
    r"<\|channel\|>final[^<\n]{0,40}(?:<\|constrain\|>[^<\n]{0,20})?<\|message\|>",
    # gpt-oss, after a server has removed the special tokens (Augustas11/macprovider#743)
    r"(?<![_-])assistantfinal(?![_-])",
    # Solar Open
    re.escape("<|begin|>assistant<|content|>"),
    # Cohere
    re.escape("<|START_RESPONSE|>"),
    # OpenThoughts
    re.escape("<|begin_of_solution|>"),
    # Apriel, whose prompt template opens the thought (LLaMA-Factory, llama.cpp)
    re.escape("[BEGIN FINAL RESPONSE]"),
    # Hunyuan A13B (vLLM), ERNIE 4.5 and Reflection put the answer into a tag directly after the
    # thought; anywhere else, such a tag is part of the answer
    rf"(?i:{'|'.join(f'(?<=</{name}>)' for name in TAGS)})\s{{0,16}}<(?:answer|output|response)>",
)

#: Markers that follow an answer and are not part of it.
ENDS = (
    # gpt-oss, Solar Open, Phi
    "<|return|>",
    "<|end|>",
    # Cohere
    "<|END_RESPONSE|>",
    # OpenThoughts
    "<|end_of_solution|>",
    # Apriel
    "[END FINAL RESPONSE]",
    # Hunyuan A13B, ERNIE 4.5, Reflection
    "</answer>",
    "</response>",
    "</output>",
)

#: Words that mark a thought: in the metadata of a part, an artifact or a message, and in the name
#: of an artifact. A word counts if it is the last word of a key whose value is true. It also counts
#: as the last word of a value whose key ends in a word of ``KINDS`` or is ``sessionUpdate``. Keys
#: may be nested. In values and names, words of ``FORMS`` may follow:
#:
#: ==========================================  ===================================================
#: ``adk_thought: true``                       Google ADK (google/adk-python#4242)
#: ``kagent_thought: true``                    kagent, which renames ADK's keys
#: ``jiuwen_thought: true``                    openJiuwen
#: ``thought: true``, ``isThought: true``      converters of GenAI parts
#: ``type: "thinking"``                        Pydantic AI (``Agent.to_a2a``)
#: ``type: "reasoning"``                       the same word in blocks of LangChain and AI SDK
#: ``shared.stream.block_type: "reasoning"``   opencode-a2a, on artifacts
#: ``source_chunk_type: "llm_reasoning"``      openJiuwen, on messages
#: ``type: "thinking_delta"``                  Anthropic's events (AstrBotDevs/AstrBot#10116)
#: ``sessionUpdate: "agent_thought_chunk"``    bridges from ACP (tiann/hapi#520)
#: artifact named ``reasoning``, ``thinking``  Intelligent-Internet/opencode-a2a#448 and others
#: ==========================================  ===================================================
#:
#: Servers that remove thoughts before they send A2A messages (LangGraph by cap-js/agents#92) need
#: no row.
WORDS = frozenset({"thought", "thoughts", "thinking", "reasoning"})
KINDS = frozenset({"type", "kind"})
FORMS = frozenset({"delta", "chunk", "block", "part", "text", "content", "summary"})
#: Maximum depth of nested metadata that is searched.
MAX_DEPTH = 5

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def names_thought(text: str) -> bool:
    """Return whether an identifier names a thought (``adk_thought``, ``thinking_delta``)."""
    words = _words(text)
    while words and words[-1] in FORMS:
        words.pop()
    return bool(words) and words[-1] in WORDS


def marks_thought(pairs: Iterable[tuple[str, object]], depth: int = 0) -> bool:
    """Return whether metadata, given as (key, value) pairs, marks its object as a thought."""
    for key, value in pairs:
        last = _words(key)[-1:]
        if value is True and last and last[0] in WORDS:
            return True
        is_kind = (last and last[0] in KINDS) or key == "sessionUpdate"
        if isinstance(value, str) and is_kind and names_thought(value):
            return True
        if isinstance(value, dict) and depth < MAX_DEPTH:
            inner = ((str(name), one) for name, one in value.items())
            if marks_thought(inner, depth + 1):
                return True
    return False


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text[-64:])]
