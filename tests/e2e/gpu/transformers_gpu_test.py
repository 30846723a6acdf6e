#!/usr/bin/env python3
"""An exported model does in transformers what its users expect: generate, pipeline, Trainer, PEFT, bf16, device_map, torch.compile, 32k tokens.

    tests/e2e/gpu/transformers_gpu_test.py BIN_DIR                 the test; skips (77) without transformers or a GPU
    tests/e2e/gpu/transformers_gpu_test.py BIN_DIR --device cpu    without the speed and memory of a GPU
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import traceback

JOB = {
    "name": "exported",
    "model": {"dim": 64, "n_layers": 3, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16, "mlp_ratio": 2},
    "nsa": {"l": 8, "d": 4, "l_sel": 8, "n_sel": 4, "w": 16, "layers": ["cmp+sel+win", "win"]},
    "data": {"source": "text", "val_fraction": 0, "tokenizer": "byte", "document_mask": True},
    "runtime": {"device": "cpu"},
    "train": {"seq_len": 128, "batch_size": 2, "steps": 12, "lr": 0.03, "save_every": 12},
}
TEXTS = ["the cell", "a much longer text of the cell, with more words than the other", "of"]
NEW = 40


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(str(word) for word in command)}: {done.returncode}\n{done.stdout}{done.stderr}"


def make_model(programs, folder):
    """A model that was trained for some steps and exported."""
    source = random.Random(2)
    (folder / "train.txt").write_text("".join(source.choice(["the ", "cell ", "of ", "x", "\n", "42 "]) for _ in range(30_000)))
    JOB["data"]["path"], JOB["train"]["out_dir"] = str(folder / "train.txt"), str(folder / "out")
    (folder / "job.yaml").write_text(json.dumps(JOB))  # JSON is YAML
    run(programs / "nsa-worker", "--job", folder / "job.yaml", "--threads", 1)
    run(programs / "nsactl", "export", folder / "out", folder / "model")
    return folder / "model"


class Checks:
    def __init__(self, programs, folder, device):
        self.programs, self.folder, self.device = programs, folder, device
        self.exported = make_model(programs, folder)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.exported)

    def load(self, **options):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.exported, trust_remote_code=True, **options)
        return model if "device_map" in options else model.to(self.device)

    def batch(self, texts=TEXTS):
        begin = self.tokenizer.bos_token
        return self.tokenizer([begin + text for text in texts], return_tensors="pt", padding=True).to(self.device)

    def generated(self, model, texts, **options):
        """The new tokens of each text."""
        ids = model.generate(**self.batch(texts), min_new_tokens=NEW, max_new_tokens=NEW, **options)
        return ids[:, -NEW:].tolist()

    def check_generate(self):
        """In fp64, so that no choice of a block or a token depends on rounding."""
        model = self.load(dtype=torch.float64)
        assert self.tokenizer.pad_token_id == model.config.pad_token_id == 0
        assert set(self.batch()) == {"input_ids", "attention_mask"}
        for options in ({"do_sample": False}, {"do_sample": False, "num_beams": 3}):
            wanted = [self.generated(model, [text], use_cache=False, **options)[0] for text in TEXTS]
            assert self.generated(model, TEXTS, **options) == wanted, f"{options}: a batch with a cache generates other tokens"
        fixed = model.new_cache(max_length=200)
        assert self.generated(model, TEXTS, do_sample=False, past_key_values=fixed) == [
            self.generated(model, [text], use_cache=False, do_sample=False)[0] for text in TEXTS]
        calls = []
        model.register_forward_pre_hook(lambda module, arguments, options: calls.append(options["input_ids"].shape[1]), with_kwargs=True)
        self.generated(model, TEXTS[:1], do_sample=False)
        assert set(calls[1:]) == {1}, f"generate() gave {calls} tokens to forward()"

    def check_pipeline(self):
        pipe = transformers.pipeline("text-generation", model=self.load(), tokenizer=self.tokenizer, device=self.device)
        for text, found in zip(TEXTS, pipe(TEXTS, batch_size=3, max_new_tokens=5)):
            assert found[0]["generated_text"].startswith(text), found

    def check_training(self):
        """Losses and gradients with and without gradient checkpointing; then steps by Trainer."""
        model, batch = self.load(), self.batch()
        found = []
        for checkpointing in (False, True):
            model.train()
            if checkpointing:
                model.gradient_checkpointing_enable()
                assert model.is_gradient_checkpointing
            model.zero_grad()
            output = model(**batch, labels=batch["input_ids"])
            output.loss.backward()
            found.append([output.loss.detach()] + [parameter.grad.clone() for parameter in model.parameters()])
        for one, other in zip(*found):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
        row = {name: tensor[1].cpu() for name, tensor in batch.items() if name in ("input_ids", "attention_mask")}  # Trainer moves it
        arguments = transformers.TrainingArguments(
            output_dir=str(self.folder / "trainer"), max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-2,
            gradient_checkpointing=True, logging_steps=1, save_strategy="no", report_to=[], use_cpu=self.device == "cpu")
        rows = [{**row, "labels": row["input_ids"]}] * 64
        trainer = transformers.Trainer(model=self.load(), args=arguments, train_dataset=rows, eval_dataset=rows[:4], compute_metrics=lambda _: {})
        trainer.train()
        assert trainer.evaluate()["eval_loss"] > 0
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(f"  losses of Trainer: {losses}")
        assert len(losses) == 6 and losses[-1] < losses[0]

    def check_peft(self):
        """LoRA on the projections; without PEFT, the call that it makes."""
        model, batch = self.load(), self.batch()
        logits = model(**batch).logits
        found = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], inputs_embeds=None, labels=batch["input_ids"],
                      output_attentions=None, output_hidden_states=None, return_dict=None)
        assert found.loss is not None and torch.equal(found.logits, logits)
        try:
            import peft
        except ImportError:
            print("  peft is not installed: only its call was made")
            return
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["W_Q", "out", "fc1", "fc2"]))
        torch.testing.assert_close(model(**batch).logits, logits, atol=1e-5, rtol=1e-5)
        model(**batch, labels=batch["input_ids"]).loss.backward()
        assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())
        self.generated(model, TEXTS[:1])

    def check_dtypes_and_devices(self):
        exact, batch = self.load()(**self.batch()).logits, self.batch()
        for options in ({"dtype": torch.bfloat16}, {"dtype": torch.float32, "device_map": "auto"}):
            model = self.load(**options)
            assert next(model.parameters()).dtype == options["dtype"]
            real = batch["attention_mask"] == 1
            error = (model(**batch).logits.to(exact.device) - exact)[real].abs().mean()
            assert error < (0.05 if options["dtype"] == torch.bfloat16 else 1e-5) * exact[real].abs().mean(), f"{options}: {error} away"
            self.generated(model, TEXTS)

    def check_saved(self):
        """What transformers saves is loaded and imported again."""
        model = self.load()
        model.save_pretrained(self.folder / "saved")
        again = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "saved", trust_remote_code=True).to(self.device)
        assert torch.equal(again(**self.batch()).logits, model(**self.batch()).logits)
        run(self.programs / "nsactl", "import", self.folder / "saved", self.folder / "back")

    def check_compiled_step(self):
        """A step of a cache of fixed shapes, compiled as one graph."""
        model = self.load(dtype=torch.float64)
        ids = self.batch(TEXTS[1:2])["input_ids"]
        with torch.no_grad():
            wanted = model(ids, use_cache=False).logits
            cache, step = model.new_cache(max_length=128), torch.compile(model.forward, fullgraph=True)
            model(ids[:, :20], past_key_values=cache)
            parts = [step(input_ids=token, past_key_values=cache).logits for token in ids[:, 20:].split(1, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), wanted[:, 20:], atol=1e-8, rtol=1e-8)

    def check_long(self):
        """A model of 78 M parameters: 32,768 tokens in the memory of a small GPU, a token after 8,192 in at most 30 ms."""
        if self.device == "cpu":
            return
        kind = type(self.load())
        model = kind(kind.config_class()).to(self.device, torch.bfloat16).eval()
        ids = torch.randint(0, 256, (1, 32_768), device=self.device)
        with torch.no_grad():
            for length in (8192, 32_768):
                torch.cuda.reset_peak_memory_stats()
                before, begin = torch.cuda.memory_allocated(), time.perf_counter()
                cache = model.new_cache()
                model(ids[:, :length], past_key_values=cache, logits_to_keep=1)
                torch.cuda.synchronize()
                prompt, peak, times = time.perf_counter() - begin, torch.cuda.max_memory_allocated() - before, []
                for _ in range(30):
                    begin = time.perf_counter()
                    model(ids[:, :1], past_key_values=cache)
                    torch.cuda.synchronize()
                    times.append(1000 * (time.perf_counter() - begin))
                token = sorted(times)[len(times) // 2]
                print(f"  {length} tokens: {prompt:.2f} s, {peak / 2**20:.0f} MiB besides the weights; then {token:.1f} ms a token")
                assert peak < 4 * 2**30, f"{peak} bytes"
                assert length > 8192 or token <= 30, f"{token:.1f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsa-transformers-") as place:
        os.environ |= {"HF_HOME": place, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        global torch, transformers
        try:
            import torch
            import transformers
        except ImportError as error:
            print(f"SKIPPED: {error}: the exported model was not run by transformers")
            sys.exit(77)
        if options.device == "cuda" and not torch.cuda.is_available():
            print("SKIPPED: no GPU (--device cpu runs the rest)")
            sys.exit(77)
        transformers.logging.set_verbosity_error()
        checks, failed = Checks(options.programs.resolve(), pathlib.Path(place), options.device), 0
        names = [name for name in dir(checks) if name.startswith("check_")]
        for name in names:
            try:
                getattr(checks, name)()
                print(f"ok: {name}", flush=True)
            except Exception:  # the others run all the same
                failed += 1
                print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)
        print(f"{len(names)} checks, {failed} failed; transformers {transformers.__version__}, PyTorch {torch.__version__}, {options.device}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
