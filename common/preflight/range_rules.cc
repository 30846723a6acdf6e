// Rules that check each number against its own limits, independently of other numbers.
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/estimate/model_options.h"
#include "common/estimate/optimizer_traits.h"
#include "common/preflight/rules.h"
#include "google/protobuf/descriptor.h"

namespace nsa {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

struct Limit {
  std::string_view field;
  double min;
  double max;
  bool above_min = false;  // min itself is not allowed
};

// Weights are of the order of 0.02: a step of 1 replaces them, and one of less than 1e-10 is lost
// in their rounding, in fp32 too.
constexpr double kLeastLr = 1e-10, kMostLr = 1;

// The upper limits of sizes keep every product in the estimate within 64 bits.
constexpr Limit kModelLimits[] = {
    {"model.dim", 1, 32768},
    {"model.n_layers", 1, 512},
    {"model.rope_base", 1, 1e12, true},
    {"model.rope_scale", 0, 1e6, true},
    {"model.mlp_ratio", 1, 16},
    {"model.vocab", 2, 1e6},
};
constexpr Limit kNsaLimits[] = {{"nsa.audit_every", 0, 1e9}};
constexpr Limit kTrainLimits[] = {
    {"train.steps", 1, 1e9},
    {"train.batch_size", 1, 1e6},
    {"train.accumulate_grad_batches", 1, 4096},
    {"train.lr", kLeastLr, kMostLr},
    {"train.min_lr_ratio", 0, 1},
    {"train.warmup_steps", 0, 1e9},
    {"train.weight_decay", 0, 10},
    {"train.grad_clip", 0, 1e6},
    {"train.log_every", 1, 1e9},
    {"train.eval_every", 0, 1e9},
    {"train.eval_batches", 1, 1e6},
    {"train.save_every", 0, 1e9},
    {"priority", -1000, 1000},
};
constexpr Limit kMuonLimits[] = {{"train.muon_lr", kLeastLr, kMostLr}};  // only where it is set
constexpr Limit kDataLimits[] = {
    {"data.val_fraction", 0, 0.5},
    {"data.loader_timeout_seconds", 0, 86400, true},
};
constexpr Limit kStreamLimits[] = {{"data.shuffle_window", 1, 1e6}};  // only where it is set
constexpr Limit kResourceLimits[] = {{"resources.gpus", 1, 65536}, {"resources.nodes", 1, 65536}};
constexpr Limit kRestartLimits[] = {
    {"restart.max_restarts", 0, 1000},          {"restart.backoff_seconds", 0, 3600},
    {"restart.hang_timeout_seconds", 1, 86400}, {"restart.max_no_progress", 1, 1000},
    {"restart.stop_grace_seconds", 0, 3600},
};
constexpr Limit kGuardLimits[] = {
    {"guard.min_tokens_per_second", 0, 1e12},
    {"guard.after_steps", 0, 1e9},
    {"guard.max_consecutive_nonfinite", 0, 1000},
    {"guard.max_gate_collapse", 0, 1},
    {"guard.hash_every", 0, 1e9},
};

constexpr Limit kPreflightLimits[] = {{"preflight.max_lost_seconds", 60, 86400}};

double NumberAt(const Message& message, std::string_view path) {
  const size_t dot = path.find('.');
  const FieldDescriptor* field =
      message.GetDescriptor()->FindFieldByName(std::string(path.substr(0, dot)));
  const auto& reflection = *message.GetReflection();
  if (dot != std::string_view::npos) {
    return NumberAt(reflection.GetMessage(message, field), path.substr(dot + 1));
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection.GetInt64(message, field));
    default:
      return reflection.GetDouble(message, field);
  }
}

Problems Outside(const PreflightFacts& facts, std::span<const Limit> limits) {
  Problems problems;
  for (const Limit& limit : limits) {
    const double value = NumberAt(facts.spec, limit.field);
    const bool inside =
        (limit.above_min ? value > limit.min : value >= limit.min) && value <= limit.max;
    if (inside) continue;  // NaN is never inside
    const std::string min = Number(limit.min), max = Number(limit.max);
    const std::string bounds = limit.above_min ? absl::StrCat("above ", min, ", at most ", max)
                                               : absl::StrCat("from ", min, " to ", max);
    problems.push_back({std::string(limit.field), absl::StrCat(Number(value), " (", bounds, ")"),
                        "set a value within the limits"});
  }
  return problems;
}

Problems NsaRange(const PreflightFacts& facts) { return Outside(facts, kNsaLimits); }
Problems DataRange(const PreflightFacts& facts) {
  Problems problems = Outside(facts, kDataLimits);
  if (facts.spec.data().has_shuffle_window()) {
    for (Problem& problem : Outside(facts, kStreamLimits)) problems.push_back(std::move(problem));
  }
  return problems;
}
Problems ResourcesRange(const PreflightFacts& facts) { return Outside(facts, kResourceLimits); }
Problems RestartRange(const PreflightFacts& facts) {
  Problems problems = Outside(facts, kRestartLimits);
  const int64_t least = facts.spec.restart().min_ranks();
  if (facts.spec.restart().has_min_ranks() && (least < 1 || least > facts.ranks())) {
    problems.push_back({"restart.min_ranks",
                        absl::StrFormat("%d (from 1 to resources.gpus = %d)", least, facts.ranks()),
                        "set a value within the limits"});
  }
  return problems;
}
Problems GuardRange(const PreflightFacts& facts) { return Outside(facts, kGuardLimits); }
Problems PreflightRange(const PreflightFacts& facts) { return Outside(facts, kPreflightLimits); }

void CheckRopeScaling(const v1::RopeScaling& scaling, Problems* problems) {
  const auto check = [&](bool good, const char* key, double value, const char* limits) {
    if (good) return;
    problems->push_back({absl::StrCat("model.rope_scaling.", key),
                         absl::StrCat(Number(value), " (", limits, ")"),
                         "set a value within the limits"});
  };
  if (scaling.type() == v1::ROPE_SCALING_TYPE_UNSPECIFIED) {
    problems->push_back({"model.rope_scaling.type", "not set (must be llama3 or yarn)", "set it"});
  }
  check(scaling.factor() >= 1 && scaling.factor() <= 1e6, "factor", scaling.factor(),
        "from 1 to 1,000,000");
  check(scaling.original_seq_len() >= 1 && scaling.original_seq_len() <= 1'000'000'000,
        "original_seq_len", scaling.original_seq_len(), "from 1 to 1,000,000,000");
  const bool yarn = scaling.type() == v1::ROPE_SCALING_TYPE_YARN;
  const double low = yarn ? scaling.beta_slow() : scaling.low_freq_factor();
  const double high = yarn ? scaling.beta_fast() : scaling.high_freq_factor();
  check(low > 0 && low <= 1e6, yarn ? "beta_slow" : "low_freq_factor", low,
        "above 0, at most 1,000,000");
  check(high > low && high <= 1e6, yarn ? "beta_fast" : "high_freq_factor", high,
        yarn ? "above beta_slow, at most 1,000,000" : "above low_freq_factor, at most 1,000,000");
}

// The keys of `model` that may be absent.
void CheckModelSizes(const v1::ModelSpec& model, Problems* problems) {
  const auto check = [&](bool good, const char* field, const std::string& problem) {
    if (!good) problems->push_back({field, problem, "set a value within the limits"});
  };
  const double eps = NormEpsOf(model);
  check(eps >= kLeastNormEps && eps <= kMostNormEps, "model.norm_eps",
        absl::StrFormat("%s (must be from %s to %s)", Number(eps), Number(kLeastNormEps),
                        Number(kMostNormEps)));
  if (model.has_rope_scaling()) CheckRopeScaling(model.rope_scaling(), problems);
  const int32_t units = model.mlp_dim();
  check(units == 0 || (units >= 16 && units <= kMostMlpUnits && units % kMlpUnitsMultiple == 0),
        "model.mlp_dim",
        absl::StrFormat("%d (must be a multiple of %d, at most %d)", units, kMlpUnitsMultiple,
                        kMostMlpUnits));
  const int64_t gated = MlpUnitsOf(model);
  check(!IsSwiglu(model) || units != 0 || gated % kMlpUnitsMultiple == 0, "model.mlp_ratio",
        absl::StrFormat("%d hidden units with mlp: swiglu (must be a multiple of %d)", gated,
                        kMlpUnitsMultiple));
}

Problems ModelRange(const PreflightFacts& facts) {
  Problems problems = Outside(facts, kModelLimits);
  for (Problem& problem : problems) {
    if (problem.field != "model.vocab" || facts.spec.model().vocab() != 0) continue;
    if (facts.spec.data().tokenizer() != v1::TOKENIZER_BPE) continue;
    problem.problem = "not set (tokenizer: bpe has no vocabulary of its own)";
    problem.fix = "set it to the number of tokens in the tokenizer.json";
  }
  CheckModelSizes(facts.spec.model(), &problems);
  return problems;
}

// Two decay rates, each 0 or more and below 1.
void CheckBetas(const google::protobuf::RepeatedField<double>& betas, const std::string& field,
                const std::string& fix, Problems* problems) {
  bool good = betas.size() == 2;
  for (const double beta : betas) good = good && beta >= 0 && beta < 1;
  if (good) return;
  problems->push_back(
      {field, absl::StrFormat("%d values (must be two, each 0 or more and below 1)", betas.size()),
       fix});
}

Problems TrainRange(const PreflightFacts& facts) {
  Problems problems = Outside(facts, kTrainLimits);
  const v1::TrainSpec& train = facts.spec.train();
  CheckBetas(train.betas(), "train.betas", "write betas: [0.9, 0.95]", &problems);
  if (!train.muon_betas().empty()) {
    CheckBetas(train.muon_betas(), "train.muon_betas", "write muon_betas: [0.95, 0.95]", &problems);
  }
  if (train.has_muon_lr()) {
    for (Problem& problem : Outside(facts, kMuonLimits)) problems.push_back(std::move(problem));
  }
  if (train.has_decay_steps() &&
      !(train.decay_steps() >= 1 && train.decay_steps() <= train.steps())) {
    problems.push_back({"train.decay_steps",
                        absl::StrFormat("%d (must be from 1 to train.steps = %d)",
                                        train.decay_steps(), train.steps()),
                        "set a value within the limits"});
  }
  return problems;
}

// A key that another key's value makes meaningless would be read as a setting that works.
Problems TrainUnused(const PreflightFacts& facts) {
  const v1::TrainSpec& train = facts.spec.train();
  Problems problems;
  if (const OptimizerTraits& traits = TraitsOf(train); !traits.whole_matrices) {
    const auto unused = [&](bool set, const char* field) {
      if (!set) return;
      problems.push_back(
          {field, absl::StrFormat("set, but train.optimizer is %s (must be muon)", traits.word),
           "remove the key, or set optimizer: muon"});
    };
    unused(train.has_muon_lr(), "train.muon_lr");
    unused(!train.muon_betas().empty(), "train.muon_betas");
  }
  if (train.has_decay_steps() && train.lr_schedule() != v1::LR_SCHEDULE_WSD) {
    problems.push_back({"train.decay_steps",
                        "set, but train.lr_schedule has no such phase (only wsd has it)",
                        "remove the key, or set lr_schedule: wsd"});
  }
  return problems;
}

constexpr PreflightRule kRangeRules[] = {
    {"MODEL_RANGE", "a number of `model` is outside its limits", kError, kError, false,
     kGuardsSizes, ModelRange},
    {"NSA_RANGE", "`nsa.audit_every` is outside its limits", kError, kError, false, kNothing,
     NsaRange},
    {"TRAIN_RANGE", "a number of `train` is outside its limits", kError, kError, false,
     kGuardsSizes, TrainRange},
    {"TRAIN_UNUSED", "a key of `train` has no effect beside the others", kError, kError, false,
     kNothing, TrainUnused},
    {"DATA_RANGE", "a number of `data` is outside its limits", kError, kError, false, kNothing,
     DataRange},
    {"RESOURCES_RANGE", "a number of `resources` is outside its limits", kError, kError, false,
     kGuardsSizes, ResourcesRange},
    {"RESTART_RANGE", "a number of `restart` is outside its limits", kError, kError, false,
     kNothing, RestartRange},
    {"GUARD_RANGE", "a number of `guard` is outside its limits", kError, kError, false, kNothing,
     GuardRange},
    {"PREFLIGHT_RANGE", "a number of `preflight` is outside its limits", kError, kError, false,
     kNothing, PreflightRange},
};

}  // namespace

std::span<const PreflightRule> RangeRules() { return kRangeRules; }

}  // namespace nsa
