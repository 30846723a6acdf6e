#!/usr/bin/env python3
"""Writes rendered.json: what Jinja makes of the templates of this folder, as Hugging Face's transformers run it. Needs python3-jinja2.

For each template the texts of six conversations: two questions and answers without and with a text of the system; prompts of the second question, without and
with it; answers with thoughts, and a prompt behind one. Null: the template refuses it.
"""
import json
import pathlib

from jinja2.sandbox import ImmutableSandboxedEnvironment

SYSTEM = [("system", " Be brief. ")]
PLAIN = [("user", "Hi"), ("assistant", "Hello!"), ("user", " Why? "), ("assistant", "Because.\n")]
THOUGHT = [("user", "Hi"), ("assistant", "<think>\nhm\n</think>\n\nHello!"), ("user", "Why?"), ("assistant", "<think>\nso\n</think>\n\nBecause.")]
CASES = [(PLAIN, False), (SYSTEM + PLAIN, False), (PLAIN[:3], True), (SYSTEM + PLAIN[:3], True), (THOUGHT, False), (THOUGHT[:3], True)]


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


def render(environment, path):
    template = environment.from_string(path.read_text())
    bos, eos = ("<|begin_of_text|>", "<|end_of_text|>") if path.name.startswith("llama3") else ("<s>", "</s>")
    texts = []
    for messages, prompt in CASES:
        messages = [{"role": role, "content": content} for role, content in messages]
        try:
            texts.append(template.render(messages=messages, bos_token=bos, eos_token=eos, add_generation_prompt=prompt))
        except Refused:
            texts.append(None)
    return texts


def main():
    folder = pathlib.Path(__file__).parent
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    rendered = {path.stem: render(environment, path) for path in sorted(folder.glob("*.jinja"))}
    (folder / "rendered.json").write_text(json.dumps(rendered, indent=1) + "\n")


if __name__ == "__main__":
    main()
