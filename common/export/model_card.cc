#include "common/export/model_card.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/estimate/layers.h"
#include "common/job/data/data_files.h"
#include "common/job/data_source.h"
#include "common/job/load.h"

namespace nsa {
namespace {

constexpr size_t kCurveRows = 24;

// Losses by step: column `loss` of a CSV file of the run, up to step `last`.
std::map<int64_t, double> CurveIn(const std::filesystem::path& csv, const std::string& column,
                                  int64_t last) {
  std::map<int64_t, double> curve;
  std::ifstream file(csv);
  std::string line;
  size_t at = 0;
  for (bool header = true; std::getline(file, line); header = false) {
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    if (header) {
      while (at < cells.size() && cells[at] != column) ++at;
      continue;
    }
    int64_t step = 0;
    double loss = 0;
    if (at < cells.size() && absl::SimpleAtoi(cells[0], &step) && step <= last &&
        absl::SimpleAtod(cells[at], &loss)) {
      curve[step] = loss;
    }
  }
  return curve;
}

// A table of at most kCurveRows steps, the first and the last among them.
std::string CurveTable(const std::map<int64_t, double>& curve, const std::string& heading) {
  std::string table = absl::StrCat("| step | ", heading, ", nats a token |\n| --- | --- |\n");
  const size_t rows = std::min(kCurveRows, curve.size());
  size_t index = 0, row = 0;
  for (const auto& [step, loss] : curve) {
    const size_t next = rows < 2 ? 0 : row * (curve.size() - 1) / (rows - 1);
    if (index++ != next) continue;
    absl::StrAppendFormat(&table, "| %d | %.4f |\n", step, loss);
    ++row;
  }
  return table;
}

std::string CurveSection(const std::filesystem::path& out_dir, int64_t step) {
  if (out_dir.empty()) return "";
  const auto validated = CurveIn(out_dir / "val.csv", "val_loss", step);
  if (!validated.empty()) return "## Curve\n\n" + CurveTable(validated, "validation loss") + "\n";
  const auto trained = CurveIn(out_dir / "training.csv", "loss", step);
  if (!trained.empty()) return "## Curve\n\n" + CurveTable(trained, "training loss") + "\n";
  return "";
}

std::string DataSection(const v1::CheckpointState& state) {
  const v1::DataSpec& data = state.spec().data();
  const bool mixed = !data.mix().empty();
  if (!mixed && !DataSourceInfoOf(data.source()).has_files()) {
    return "Generated tokens; the model knows no text.\n";
  }
  std::string text;
  for (const DataFiles& files : TrainingFiles(data)) {
    const std::string name =
        mixed ? absl::StrFormat("%s (weight %g): ", files.name, files.weight) : "Files: ";
    absl::StrAppend(&text, text.empty() ? "" : " ", name, "`", absl::StrJoin(files.paths, "`, `"),
                    "`.");
  }
  if (!data.val_path().empty()) {
    absl::StrAppend(&text, " Validation: `", absl::StrJoin(data.val_path(), "`, `"), "`.");
  } else if (data.val_fraction() > 0) {
    absl::StrAppendFormat(&text, " Validation: %g of the documents, held out by hash.",
                          data.val_fraction());
  }
  if (!state.data().fingerprint().empty()) {
    absl::StrAppend(&text, " Fingerprint of the data: `", state.data().fingerprint(), "`.");
  }
  return text + "\n";
}

std::string LossSection(const v1::CheckpointState& state) {
  std::string text = absl::StrFormat(
      "| | |\n| --- | --- |\n| optimizer steps | %d |\n| predicted "
      "tokens | %d |\n",
      state.step(), state.total_tokens());
  if (state.val_loss() > 0) {
    absl::StrAppendFormat(&text, "| last validation loss | %.4f nats a token (perplexity %.3f) |\n",
                          state.val_loss(), std::exp(state.val_loss()));
  }
  if (state.best_val_loss() > 0) {
    absl::StrAppendFormat(&text, "| best validation loss | %.4f nats a token, after step %d |\n",
                          state.best_val_loss(), state.best_val_step());
  }
  return text;
}

constexpr char kUse[] = R"(## Use

With transformers 5 (the code is in this folder, so it asks for your trust):

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
batch = tokenizer([tokenizer.bos_token + "Hi", tokenizer.bos_token + "A longer text"], return_tensors="pt", padding=True)
texts = tokenizer.batch_decode(model.generate(**batch, max_new_tokens=50))
```

With PyTorch alone:

```python
import sys, torch
sys.path.insert(0, FOLDER)
from modeling_nsa import NsaForCausalLM
model = NsaForCausalLM.from_folder(FOLDER)
logits = model(torch.tensor([[0, 72, 105]])).logits
```

Begin a text with the separator token, as in training.

## What runs it

| program | |
| --- | --- |
| transformers (`generate`, `pipeline`, `Trainer`, PEFT), PyTorch alone | yes: the code in this folder, in plain PyTorch. It computes what training computed, in fp32 and bf16, and keeps a cache; memory grows with the tokens, not with their square |
| `nsactl serve`, for clients of OpenAI's API and lm-eval | yes: from a checkpoint, which `nsactl import` makes of this folder |
| `nsactl import`, then a job with `restart: {resume: CHECKPOINT}` | yes: trains on, with the kernels of training |
| vLLM, SGLang, TGI, TensorRT-LLM | no: they have no kernels for this attention and do not run the code of this folder |
| llama.cpp, Ollama, LM Studio, any GGUF | no: GGUF has no architecture for it, and a converter would have to drop branches |
| generation with an assistant model, `position_ids` of packed rows, `cache_implementation` | no: an error or a warning says so. `past_key_values=model.new_cache(max_length=N)` is the cache of fixed shapes |

Rows may be padded on either side; pass `attention_mask`. The padding token is the separator, and with `labels` the loss leaves out padding by the mask, so that labels
may be the input ids. A data collator that masks every padding token in the labels also masks the separators.

)";

constexpr char kPlainUse[] = R"(## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
```

No layer is sparse, so this is a plain architecture without code of its own: whatever runs it runs this model, such as transformers, vLLM, and llama.cpp with its
converter to GGUF. `nsactl import` makes a checkpoint of it, to train on.

Begin a text with the separator token, as in training.

)";

// Of a plain model; empty if all of its layers read all tokens.
std::string WindowSection(const v1::JobSpec& spec) {
  const std::vector<LayerAttention> layers = LayersOf(spec.nsa());
  const auto dense = [&](const LayerAttention& layer) { return IsDense(layer, spec); };
  if (std::ranges::all_of(layers, dense)) return "";
  return absl::StrFormat(
      "%s of its layers read only the last %d tokens: `sliding_window`, `max_window_layers` and "
      "`layer_types` in config.json say so. transformers (AutoModelForCausalLM) and vLLM read "
      "these keys; a program that ignores them, as converters to GGUF may do, runs another "
      "model.\n\n",
      std::ranges::any_of(layers, dense) ? "Some" : "All", spec.nsa().w());
}

}  // namespace

std::string ModelCard(const v1::CheckpointState& state, const ModelCardFacts& facts) {
  const std::string& name = state.spec().name();
  const bool plain = !facts.architecture.empty();
  std::string card =
      absl::StrCat("---\n", plain ? "" : "tags: [nsa, native-sparse-attention, custom_code]\n",
                   "pipeline_tag: text-generation\n---\n\n");
  absl::StrAppend(&card, "# ", name.empty() ? "A model" : name, "\n\n");
  absl::StrAppendFormat(&card, "%s: %d parameters in %s, trained on sequences of %d tokens.%s\n\n",
                        plain ? absl::StrCat("A dense decoder, ", facts.architecture)
                              : "A decoder with Native Sparse Attention ([arXiv "
                                "2502.11089](https://arxiv.org/abs/2502.11089))",
                        facts.parameters, facts.bf16 ? "bf16 (rounded from fp32)" : "fp32",
                        state.spec().train().seq_len(),
                        facts.has_tokenizer
                            ? ""
                            : " The job does not say which tokenizer wrote its token files: there "
                              "are no tokenizer files here.");
  absl::StrAppend(&card, "## Training\n\n", LossSection(state), "\n", DataSection(state), "\n",
                  CurveSection(facts.out_dir, state.step()), plain ? kPlainUse : kUse,
                  plain ? WindowSection(state.spec()) : "");
  absl::StrAppend(&card, "## Job\n\n```yaml\n", ToYaml(state.spec()), "```\n");
  return card;
}

}  // namespace nsa
