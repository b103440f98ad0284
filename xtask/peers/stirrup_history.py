"""Histories as Stirrup itself writes and reads them.

    stirrup_history.py dump FILE      write a history with every kind of message and block
    stirrup_history.py load FILE      validate a history, print it as Stirrup dumps it again
    stirrup_history.py upgrade FILE   the same for a history of v0.1; ids made up on the way are
                                      printed as "<synthesized-1>", "<synthesized-2>", ...

Runs in an environment with Stirrup 0.2. A file that does not validate ends it with a traceback.
"""

import io
import json
import re
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import imageio_ffmpeg
from PIL import Image
from pydantic import TypeAdapter
from stirrup.core import models as m

HISTORY = TypeAdapter(list[m.ChatMessage])


def png() -> m.ImageContentBlock:
    out = io.BytesIO()
    Image.new("RGB", (2, 2), (200, 30, 30)).save(out, "PNG")
    return m.ImageContentBlock(data=out.getvalue())


def wav() -> m.AudioContentBlock:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(bytes([128] * 80))
    return m.AudioContentBlock(data=out.getvalue())


def mp4() -> m.VideoContentBlock:
    with tempfile.TemporaryDirectory() as directory:
        clip = Path(directory, "clip.mp4")
        ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-fflags", "+bitexact"]
        picture = ["-f", "lavfi", "-i", "color=c=red:s=16x16:r=10:d=0.2"]
        subprocess.run([*ffmpeg, *picture, "-c:v", "mpeg4", "-flags:v", "+bitexact", clip], check=True)
        return m.VideoContentBlock(data=clip.read_bytes())


def every_kind() -> list:
    image, audio, video = png(), wav(), mp4()
    return [
        m.SystemMessage(content="You are a careful assistant."),
        m.UserMessage(content="Summarise the recordings."),
        m.UserMessage(content=["Three attachments:", image, audio, "and", video]),
        m.AssistantMessage(
            id="0b54d1f0a1d24c0c8f0f6f2a3f2e9d01",
            provider_response_id="resp_0042",
            blocks=[
                m.ReasoningBlock(content="The picture is red."),
                m.SignedReasoningBlock(signature="c2lnbmVk", content="I should listen first."),
                m.SignedReasoningBlock(signature="b25seSBhIHNpZ25hdHVyZQ=="),
                m.RedactedReasoningBlock(data="cmVkYWN0ZWQ="),
                m.ReasoningRefBlock(id="rs_1"),
                m.ReasoningRefBlock(id="rs_2", content="Kept by the provider.", summary=["Listens", "then writes"]),
                m.EncryptedReasoningBlock(id="rs_3", encrypted_content="Z0FBQUE="),
                m.EncryptedReasoningBlock(
                    id="rs_4", encrypted_content="Z0FBQUI=", content="Readable too.", summary=["Counts"]
                ),
                m.TextBlock(text="I'll listen to the recording – un instant…"),
                m.TextBlock(text="Signed text.", signature="dGV4dA=="),
                m.OpaqueBlock(data='{"type": "web_search_marker", "id": "ws_1", "n": 1.0}'),
                m.ToolCall(name="code_exec", arguments='{"cmd": "ls -1"}', tool_call_id="call_1"),
                m.ToolCall(name="code_exec", arguments="{}", tool_call_id="call_2", signature="Y2FsbA=="),
                m.ToolCall(name="view", arguments="", tool_call_id="made-up-1", has_provider_tool_call_id=False),
            ],
            token_usage=m.TokenUsage(input=1200, answer=80, reasoning=40),
            metadata={"attempt": 1, "cost_usd": 0.0125, "tags": ["a", None], "nested": {"on": True}},
            request_start_time=1767225600.25,
            request_end_time=1767225602.75,
        ),
        m.ToolMessage(
            content="a.wav\nb.wav\n",
            tool_call_id="call_1",
            name="code_exec",
            success=True,
            tool_start_time=1767225603.0,
            tool_end_time=1767225603.5,
        ),
        m.ToolMessage(
            content="Tool arguments are not valid", tool_call_id="call_2", name="code_exec", args_was_valid=False
        ),
        m.ToolMessage(content=["The picture:", image], tool_call_id="made-up-1", success=True),
        m.AssistantMessage(id="0b54d1f0a1d24c0c8f0f6f2a3f2e9d02", blocks=[m.TextBlock(text=""), image, audio, video]),
        m.UserMessage(content=""),
        m.AssistantMessage(id="0b54d1f0a1d24c0c8f0f6f2a3f2e9d03"),
        m.SummaryMessage(
            content="So far: the picture is red, two recordings exist.",
            replaced_ids=["0b54d1f0a1d24c0c8f0f6f2a3f2e9d01", "0b54d1f0a1d24c0c8f0f6f2a3f2e9d02"],
        ),
        m.SummaryMessage(content="Nothing was replaced."),
        m.TurnWarningMessage(content="5 turns are left."),
        m.AssistantMessage(
            id="0b54d1f0a1d24c0c8f0f6f2a3f2e9d04",
            blocks=[m.ToolCall(name="finish", arguments='{"reason": "done", "paths": []}', tool_call_id="call_3")],
            token_usage=m.TokenUsage(input=900, answer=12),
        ),
        m.ToolMessage(content="done", tool_call_id="call_3", name="finish", success=True),
    ]


def dumped(messages: list) -> str:
    return json.dumps(HISTORY.dump_python(messages, mode="json"), indent=2, ensure_ascii=False) + "\n"


def with_stable_ids(text: str, known: str) -> str:
    made_up: dict[str, str] = {}

    def stable(match: re.Match) -> str:
        found = match.group(0)
        return found if found in known else made_up.setdefault(found, f"<synthesized-{len(made_up) + 1}>")

    return re.sub(r"\b[0-9a-f]{32}\b", stable, text)


def main(mode: str, file: str) -> None:
    if mode == "dump":
        Path(file).write_text(dumped(every_kind()), encoding="utf-8")
        return
    text = Path(file).read_text(encoding="utf-8")
    if mode == "load":
        print(dumped(HISTORY.validate_python(json.loads(text))), end="")
    elif mode == "upgrade":
        # The step that pairs null ids: Stirrup's own readers of v0.1 histories take it first.
        sequence = m._upgrade_legacy_message_sequence(json.loads(text))
        print(with_stable_ids(dumped(HISTORY.validate_python(sequence)), known=text), end="")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 3 else sys.exit(__doc__)
