#include "common/job/legacy_keys.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <optional>
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nsa {
namespace {

constexpr LegacyRule kRules[] = {
    {"runtime.use_flash", "",
     "has no effect: there is one attention implementation (the Python trainer ignored it too)"},
    {"runtime.use_triton_sel", "",
     "has no effect: there is one selection kernel (the Python trainer ignored it too)"},
    {"runtime.sel_triton_min_L", "",
     "has no effect: there is one selection kernel for every length (the Python trainer ignored "
     "it too)"},
    {"runtime.fa2_*", "",
     "has no effect: FlashAttention-2 is not used, the kernels here are exact at every length"},
    {"runtime.compile_cmp_win", "",
     "has no effect: kernels are compiled ahead of time (the Python trainer ignored it too)"},
    {"train.max_grad_norm", "grad_clip",
     "is read as train.grad_clip (the Python trainer ignored it and clipped at grad_clip)"},
};

// Where a note about `field` points to: the key, else the section around it, else the first line.
SourcePlace PlaceOf(const SourceMap& places, std::string_view field) {
  for (const std::string_view name : {field, field.substr(0, field.find('.'))}) {
    const auto place = places.find(name);
    if (place != places.end()) return place->second;
  }
  return {1, 1};
}

// The number of GPUs in a file's name: runs/m7c_2xa100_long.yaml → 2. None if there is none.
std::optional<int32_t> GpusInName(std::string_view file) {
  const std::string name = std::filesystem::path(std::string(file)).stem().string();
  static const std::regex kCountAndModel("(?:^|[^A-Za-z0-9])([1-9][0-9]{0,2})[xX][A-Za-z]+[0-9]");
  std::smatch match;
  if (!std::regex_search(name, match, kCountAndModel)) return std::nullopt;
  return std::stoi(match[1].str());
}

// Brings one file of the Python system to today's meaning.
class LegacyFile {
 public:
  LegacyFile(std::string_view file, LoadResult* result, v1::JobSpec* spec)
      : file_(file), result_(*result), spec_(*spec), train_(*spec->mutable_train()) {
    ApplyDefaults(&defaults_);
  }

  void Complete() {
    NoteMissing("model", {"dim", "n_heads", "n_kv_groups", "d_k", "d_v"});
    NoteMissing("nsa", {"l", "d", "l_sel", "n_sel", "w"});
    NoteMissing("train", {"steps", "seq_len", "batch_size", "lr"});
    CompleteModel();
    CompleteData();
    CompleteRanks();
    CompleteBatch();
    CompleteCounts();
    CompleteSchedule();
    CompleteOptimizer();
    CompleteCheckpoints();
  }

 private:
  void Note(const std::string& field, std::string why) {
    result_.legacy.push_back({field, PlaceOf(result_.places, field), std::move(why)});
  }

  // The Python trainer required these keys; only its command line could replace them.
  void NoteMissing(const std::string& section, std::initializer_list<const char*> keys) {
    const auto* field = spec_.GetDescriptor()->FindFieldByName(section);
    const google::protobuf::Message& message = spec_.GetReflection()->GetMessage(spec_, field);
    for (const char* key : keys) {
      const auto* value = message.GetDescriptor()->FindFieldByName(key);
      if (message.GetReflection()->HasField(message, value)) continue;
      Note(absl::StrCat(section, ".", key),
           "is not set: the default here; the Python trainer did not start without it");
    }
  }

  void CompleteModel() {
    if (!spec_.model().has_n_layers()) {
      spec_.mutable_model()->set_n_layers(1);
      Note("model.n_layers", absl::StrFormat("is not set: 1, as in the Python system (the default "
                                             "here is %d)",
                                             defaults_.model().n_layers()));
    }
    CompleteAttention();
  }

  void CompleteAttention() {
    v1::NsaSpec& nsa = *spec_.mutable_nsa();
    if (nsa.phi() == v1::PHI_MLP) {
      Note("nsa.phi", "mlp takes effect; the Python system ignored the key and used avg");
    } else if (nsa.phi() == v1::PHI_UNSPECIFIED) {
      nsa.set_phi(v1::PHI_AVG);
      Note("nsa.phi", "is not set: avg, as in the Python system (the default here is mlp)");
    }
    if (nsa.gate() == v1::GATE_UNSPECIFIED) {
      nsa.set_gate(v1::GATE_SOFTMAX);
      Note("nsa.gate",
           "is not set: softmax, as in the Python system (the default here is sigmoid)");
    }
  }

  void CompleteData() {
    if (spec_.data().source() != v1::DATA_SOURCE_UNSPECIFIED) return;
    Note("data.source",
         "is not set: synthetic; the Python system took its data from --dataset. To train on text, "
         "set source and path");
  }

  void CompleteRanks() {
    if (spec_.resources().has_gpus()) return;
    const std::optional<int32_t> named = GpusInName(file_);
    spec_.mutable_resources()->set_gpus(named.value_or(defaults_.resources().gpus()));
    constexpr char kTorchrun[] = "; the Python system took the number of ranks from torchrun";
    const std::string gpus = absl::StrCat("is not set: ", spec_.resources().gpus());
    Note("resources.gpus",
         named ? absl::StrCat(gpus, ", from the file's name", kTorchrun)
               : absl::StrCat(gpus, kTorchrun,
                              ". For two, add `resources: {gpus: 2}` to the file and leave "
                              "train.batch_size as it is"));
  }

  void CompleteBatch() {
    const int64_t ranks = spec_.resources().gpus();
    const int64_t batch = train_.batch_size();
    if (ranks <= 1 || batch <= 0) return;
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // preflight refuses it
    const int64_t all = std::min(batch * ranks, kMost);
    train_.set_batch_size(static_cast<int32_t>(all));
    Note("train.batch_size",
         absl::StrFormat("%d → %d: counts the sequences of all %d ranks; in the Python system each "
                         "rank took %d sequences of text",
                         batch, all, ranks, batch));
  }

  // A micro-step of the Python system was one micro-batch; `count` of them become steps.
  int64_t Steps(const char* field, int64_t count) {
    const int64_t accumulate = train_.accumulate_grad_batches();
    if (accumulate <= 1 || count <= 0) return count;
    const int64_t steps = std::max<int64_t>(1, count / accumulate);
    Note(absl::StrCat("train.", field),
         absl::StrFormat("%d → %d: counts optimizer steps; the Python system counted micro-steps, "
                         "%d of them in a step",
                         count, steps, accumulate));
    return steps;
  }

  void CompleteCounts() {
    micro_steps_ = train_.steps();
    if (train_.has_steps()) train_.set_steps(Steps("steps", train_.steps()));
    if (train_.has_log_every()) train_.set_log_every(Steps("log_every", train_.log_every()));
    if (train_.has_eval_every()) train_.set_eval_every(Steps("eval_every", train_.eval_every()));
    if (train_.has_save_every()) train_.set_save_every(Steps("save_every", train_.save_every()));
  }

  // The learning rate at the end of a Python run, as a share of lr: it advanced once per optimizer
  // step, but its cosine was as long as the micro-steps.
  double EndOfThePythonSchedule() const {
    const auto steps = static_cast<double>(train_.steps());
    const auto warmup = static_cast<double>(train_.warmup_steps());
    if (steps <= warmup) return 1;
    const double done = (steps - warmup) / (static_cast<double>(micro_steps_) - warmup);
    return 0.5 * (1 + std::cos(std::numbers::pi * done));
  }

  void CompleteSchedule() {
    if (!train_.has_min_lr_ratio()) {
      train_.set_min_lr_ratio(0);
      Note("train.min_lr_ratio",
           absl::StrFormat("is not set: 0, as in the Python system (the default here is %g)",
                           defaults_.train().min_lr_ratio()));
    }
    if (train_.lr_schedule() > v1::LR_SCHEDULE_COSINE) {
      Note("train.lr_schedule", "takes effect; the Python system ignored the key and used cosine");
    } else if (train_.steps() > 0 && train_.steps() < micro_steps_) {
      Note("train.lr_schedule",
           absl::StrFormat("the cosine ends at the last step; the Python system's was %d times as "
                           "long, and its last learning rate was %.3g %% of lr",
                           micro_steps_ / train_.steps(), 100 * EndOfThePythonSchedule()));
    }
  }

  void CompleteOptimizer() {
    if (train_.betas().empty()) {
      train_.add_betas(0.9);
      train_.add_betas(0.999);
      Note("train.betas", absl::StrFormat("is not set: [0.9, 0.999], as in the Python system (the "
                                          "default here is [%g, %g])",
                                          defaults_.train().betas(0), defaults_.train().betas(1)));
    }
    if (!train_.has_weight_decay()) {
      train_.set_weight_decay(0);
      Note("train.weight_decay",
           absl::StrFormat("is not set: 0, as in the Python system (the default here is %g)",
                           defaults_.train().weight_decay()));
    } else if (train_.weight_decay() > 0) {
      Note("train.weight_decay",
           "applies to matrices only; the Python system also decayed norms and biases");
    }
  }

  void CompleteCheckpoints() {
    if (train_.save_every() <= 0 || train_.has_keep_checkpoints()) return;
    Note("train.keep_checkpoints",
         absl::StrFormat("is not set: the newest %d are kept; the Python system kept all",
                         defaults_.train().keep_checkpoints()));
  }

  const std::string_view file_;
  LoadResult& result_;
  v1::JobSpec& spec_;
  v1::TrainSpec& train_;
  v1::JobSpec defaults_;
  int64_t micro_steps_ = 0;  // train.steps as the file has it
};

}  // namespace

const LegacyRule* FindLegacyRule(std::string_view field) {
  for (const LegacyRule& rule : kRules) {
    const bool prefix = rule.field.ends_with('*');
    const std::string_view stem = prefix ? rule.field.substr(0, rule.field.size() - 1) : rule.field;
    if (prefix ? field.starts_with(stem) : field == stem) return &rule;
  }
  return nullptr;
}

void CompleteLegacyFile(std::string_view file, LoadResult* result, v1::JobSpec* spec) {
  if (!result->legacy.empty()) LegacyFile(file, result, spec).Complete();
}

}  // namespace nsa
