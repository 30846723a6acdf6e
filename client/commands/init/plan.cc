#include "client/commands/init/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <regex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/connect/job_source.h"
#include "client/show/human.h"
#include "common/estimate/estimate.h"
#include "common/job/load.h"
#include "common/preflight/advice.h"

namespace nsa::client {
namespace {

struct ModelSize {
  int32_t dim, layers, heads, head_width;
  int32_t seq_len;  // as long as there is data enough
};
// The shapes of configs/jobs/demo.yaml, of two between, and of openstax_best.yaml, which is the
// largest that was measured (docs/quality.md).
constexpr std::array<ModelSize, 4> kModelSizes = {
    {{128, 2, 4, 32, 256}, {256, 4, 8, 32, 512}, {512, 8, 8, 64, 1024}, {768, 12, 12, 64, 2048}}};

struct AttentionSize {
  int32_t seq_len;
  int32_t l, d, l_sel, n_sel, w;
};
// Windows and selected blocks are at most half of a sequence.
constexpr std::array<AttentionSize, 5> kAttentionSizes = {{{128, 16, 8, 16, 4, 32},
                                                           {256, 16, 8, 32, 4, 64},
                                                           {512, 16, 8, 32, 8, 128},
                                                           {1024, 32, 16, 64, 8, 256},
                                                           {2048, 32, 16, 64, 16, 256}}};

// The data is at least so many sequences.
constexpr int64_t kLeastSequences = 32;
// A run has at least so many steps, where they read the data ten times at most.
constexpr int64_t kLeastSteps = 100;
constexpr int64_t kMostEpochs = 10;
// From 5,000 steps on a job is production: fewer, larger ones suit a first job.
constexpr int64_t kMostInitSteps = 4'500;

void SetAttention(int32_t seq_len, v1::JobSpec* spec) {
  const auto* size = &kAttentionSizes.front();
  for (const AttentionSize& each : kAttentionSizes) {
    if (each.seq_len <= seq_len) size = &each;
  }
  spec->mutable_train()->set_seq_len(seq_len);
  v1::NsaSpec* nsa = spec->mutable_nsa();
  nsa->set_l(size->l);
  nsa->set_d(size->d);
  nsa->set_l_sel(size->l_sel);
  nsa->set_n_sel(size->n_sel);
  nsa->set_w(size->w);
}

int32_t SequenceFor(const ModelSize& size, int64_t tokens) {
  int32_t seq_len = size.seq_len;
  while (tokens >= 0 && seq_len > kAttentionSizes.front().seq_len &&
         tokens < kLeastSequences * seq_len) {
    seq_len /= 2;
  }
  return seq_len;
}

void SetModel(const ModelSize& size, const InitData& data, v1::JobSpec* spec) {
  v1::ModelSpec* model = spec->mutable_model();
  model->set_dim(size.dim);
  model->set_n_layers(size.layers);
  model->set_n_heads(size.heads);
  model->set_n_kv_groups(2);
  model->set_d_k(size.head_width);
  model->set_d_v(size.head_width);
  model->set_qk_norm(true);
  model->set_activation(v1::ACTIVATION_RELU2);
  SetAttention(SequenceFor(size, data.tokens), spec);
  // As in openstax_best.yaml. Smaller models were measured with all branches only.
  spec->mutable_nsa()->clear_layers();
  model->clear_rope_layers();
  if (size.dim < kModelSizes.back().dim) return;
  model->set_rope_layers(v1::ROPE_LAYERS_WINDOW);
  for (const char* branch : {"win", "sel"}) spec->mutable_nsa()->add_layers(branch);
}

void SetBatch(const InitMachine& machine, v1::JobSpec* spec) {
  const bool large = spec->model().dim() >= kModelSizes.back().dim;
  spec->mutable_train()->set_batch_size(!machine.cuda() ? 8 : large ? 32 : 16);
  v1::RuntimeSpec* runtime = spec->mutable_runtime();
  runtime->set_device(machine.cuda() ? v1::DEVICE_CUDA : v1::DEVICE_CPU);
  runtime->set_precision(machine.cuda() ? v1::PRECISION_BF16 : v1::PRECISION_FP32);
  if (machine.cuda()) runtime->set_gradient_checkpointing(true);
}

v1::JobSpec WithDefaults(v1::JobSpec spec) {
  ApplyDefaults(&spec);
  return spec;
}

double SpeedOf(const v1::JobSpec& spec, const InitMachine& machine) {
  return ExpectedTokensPerSecond(WithDefaults(spec), machine.device, machine.cores,
                                 machine.memory_bytes);
}

// How many tokens a run with this model shall predict, and what limits it.
struct Length {
  double tokens = 0;
  std::string why;
  bool enough = false;           // as many as the model can use
  bool limited_by_data = false;  // more would read it too often
};

Length LengthOf(const v1::JobSpec& spec, double training_tokens, const InitMachine& machine,
                double seconds) {
  const double useful =
      kManyTokensPerParameter * static_cast<double>(ParameterCount(WithDefaults(spec)));
  const double timely = SpeedOf(spec, machine) * seconds;
  const double there = training_tokens < 0 ? std::numeric_limits<double>::infinity()
                                           : kUsefulEpochs * training_tokens;
  const std::string in_time = absl::StrCat("as many as take about ", HumanDuration(seconds));
  Length length{.tokens = std::min({useful, timely, there}), .why = in_time};
  length.enough = useful <= timely && useful <= there;
  if (length.tokens == useful) length.why = "20 tokens for each parameter";
  length.limited_by_data = length.tokens == there && !length.enough;
  return length;
}

void SetLength(const Length& length, InitPlan* plan) {
  v1::TrainSpec* train = plan->spec.mutable_train();
  const auto step = static_cast<double>(train->batch_size()) * train->seq_len();
  auto steps = static_cast<int64_t>(std::round(length.tokens / step));
  plan->comments["train.steps"] = length.why;
  plan->limited_by_data = length.limited_by_data;
  const double all = kMostEpochs * plan->training_tokens;
  const int64_t least =
      all < 0 ? kLeastSteps : std::clamp<int64_t>(std::llround(all / step), 1, kLeastSteps);
  if (steps < least) {
    steps = least;
    plan->comments["train.steps"] = "fewer would teach the model little";
    plan->limited_by_data = false;
  }
  int32_t batches = 1;
  for (; steps > kMostInitSteps; steps = (steps + 1) / 2) batches *= 2;
  if (batches > 1) train->set_accumulate_grad_batches(batches);
  train->set_steps(steps);
  train->set_warmup_steps(std::max<int64_t>(1, steps / 20));
  train->set_log_every(std::clamp<int64_t>(steps / 20, 1, 20));
  train->set_eval_every(std::max<int64_t>(1, steps / 10));
  train->set_eval_batches(4);
  train->set_save_every(std::max<int64_t>(1, steps / 5));
  plan->comments["train.eval_every"] = "steps between validations";
  plan->comments["train.save_every"] = "steps between checkpoints; a fault loses less than that";
}

// Small models learn with the rates of configs/jobs/demo.yaml, larger ones with those that
// preflight advises; weights that were trained before take smaller steps.
void SetRates(bool has_model, InitPlan* plan) {
  v1::TrainSpec* train = plan->spec.mutable_train();
  const int64_t parameters = ParameterCount(WithDefaults(plan->spec));
  const bool small = parameters < kSmallestAdvisedModel;
  const double further = has_model ? 0.3 : 1;
  train->set_optimizer(v1::OPTIMIZER_MUON);
  train->set_lr(further * (small ? 3e-3 : UsualLr(static_cast<double>(parameters))));
  train->set_muon_lr(further * (small ? 6e-3 : kUsualMuonLr));
  train->set_lr_schedule(v1::LR_SCHEDULE_LINEAR);
  train->set_min_lr_ratio(0);
  train->set_weight_decay(0.1);
  plan->comments["train.lr"] = "embedding, head, norms and gates";
  plan->comments["train.muon_lr"] = "the matrices of projections and MLPs";
  plan->comments["model"] =
      absl::StrCat(has_model ? "the checkpoint's: " : "", WithCommas(parameters), " parameters");
}

void SetValidation(const InitData& data, InitPlan* plan) {
  v1::DataSpec* spec = plan->spec.mutable_data();
  if (!spec->val_path().empty() || spec->has_val_fraction()) return;
  const bool little = data.tokens >= 0 && data.tokens < 1'000'000;
  const bool some = data.tokens >= 0 && data.tokens < 10'000'000;
  spec->set_val_fraction(little ? 0.1 : some ? 0.05 : 0.01);
  plan->comments["data.val_fraction"] = "held out for validation";
}

// How many tokens of the data are trained on.
double TrainingTokens(const InitData& data, const v1::DataSpec& spec) {
  if (data.tokens < 0) return -1;
  const double held_out = spec.val_path().empty() ? spec.val_fraction() : 0;
  return (1 - std::clamp(held_out, 0.0, 1.0)) * static_cast<double>(data.tokens);
}

// "the training text is read about 4 times".
std::string PassesText(const InitPlan& plan) {
  const v1::TrainSpec& train = plan.spec.train();
  const double tokens = static_cast<double>(train.steps()) * train.batch_size() *
                        std::max(1, train.accumulate_grad_batches()) * train.seq_len();
  const int64_t passes = std::llround(tokens / std::max(1.0, plan.training_tokens));
  return absl::StrCat("the training text is read about ",
                      passes < 2 ? "once" : absl::StrCat(passes, " times"));
}

// "set save_every: 57 or less" and "try lr_schedule: linear with min_lr_ratio: 0", as the fields of
// the section of a finding.
std::vector<std::string> AssignmentsIn(const v1::Finding& finding) {
  static const std::regex kHint(
      R"(^(?:set|try) ([a-z_]+): ([^ ,;]+)(?: with ([a-z_]+): ([^ ,;]+))?)");
  std::smatch match;
  const std::string& fix = finding.fix();
  if (!std::regex_search(fix, match, kHint)) return {};
  const std::string& field = finding.field();
  const std::string section = field.substr(0, field.find('.'));
  std::vector<std::string> all = {absl::StrCat(section, ".", match.str(1), "=", match.str(2))};
  if (match[3].matched) all.push_back(absl::StrCat(section, ".", match.str(3), "=", match.str(4)));
  return all;
}

bool FollowHint(const v1::Finding& finding, v1::JobSpec* spec) {
  v1::JobSpec changed = *spec;
  for (const std::string& assignment : AssignmentsIn(finding)) {
    if (!ApplySet(assignment, &changed).ok()) return false;
  }
  if (changed.SerializeAsString() == spec->SerializeAsString()) return false;
  *spec = std::move(changed);
  return true;
}

bool HalveBatch(v1::TrainSpec* train, bool keep_tokens) {
  if (train->batch_size() < 2) return false;
  train->set_batch_size(train->batch_size() / 2);
  if (keep_tokens) {
    train->set_accumulate_grad_batches(2 * std::max(1, train->accumulate_grad_batches()));
  }
  return true;
}

bool HalveSequence(v1::JobSpec* spec) {
  const int32_t half = spec->train().seq_len() / 2;
  if (half < kAttentionSizes.front().seq_len || !spec->restart().init().empty()) return false;
  SetAttention(half, spec);
  return true;
}

bool HalveSteps(v1::TrainSpec* train, bool keep_tokens) {
  if (train->steps() < 20) return false;
  train->set_steps(train->steps() / 2);
  train->set_warmup_steps(std::max<int64_t>(1, train->steps() / 20));
  train->set_eval_every(std::max<int64_t>(1, train->steps() / 10));
  train->set_save_every(std::min(train->save_every(), train->steps()));
  if (keep_tokens) {
    train->set_accumulate_grad_batches(2 * std::max(1, train->accumulate_grad_batches()));
  }
  return true;
}

bool Stream(InitPlan* plan) {
  if (plan->spec.data().stream()) return false;
  ReadInPassing(&plan->spec, &plan->comments);
  return true;
}

// What is too large becomes smaller.
bool Shrink(const std::string& rule, InitPlan* plan) {
  v1::JobSpec* spec = &plan->spec;
  v1::TrainSpec* train = spec->mutable_train();
  if (rule == "MEMORY_ESTIMATE_EXCEEDED") {
    return HalveBatch(train, true) || HalveSequence(spec) || Stream(plan);
  }
  if (rule == "HOST_MEMORY_EXCEEDED") return Stream(plan);
  if (rule == "DATA_TOO_SMALL") return HalveBatch(train, false) || HalveSequence(spec);
  if (rule == "VAL_TOO_SMALL") return HalveSequence(spec);
  if (rule == "DATA_REPEATED") {
    plan->limited_by_data = plan->training_tokens > 0;
    return HalveSteps(train, false);
  }
  if (rule == "MODEL_TOO_SMALL_FOR_RUN") return HalveSteps(train, true);
  return false;
}

}  // namespace

InitPlan PlanJob(const InitData& data, const InitMachine& machine, double seconds) {
  InitPlan plan{.spec = data.spec, .comments = data.comments};
  SetValidation(data, &plan);
  plan.training_tokens = TrainingTokens(data, plan.spec.data());
  SetBatch(machine, &plan.spec);
  Length length = LengthOf(plan.spec, plan.training_tokens, machine, seconds);
  for (auto size = kModelSizes.rbegin(); !data.has_model && size != kModelSizes.rend(); ++size) {
    SetModel(*size, data, &plan.spec);
    SetBatch(machine, &plan.spec);
    length = LengthOf(plan.spec, plan.training_tokens, machine, seconds);
    if (length.enough) break;
  }
  SetLength(length, &plan);
  SetRates(data.has_model, &plan);
  plan.spec.mutable_train()->set_seed(1337);
  plan.spec.mutable_train()->set_out_dir("out/{name}-{n}");
  plan.comments["train.out_dir"] = "{n} is the first number that is free";
  plan.comments["runtime"] = machine.in_words;
  if (!data.has_model) plan.comments["nsa"] = "blocks and window for sequences of this length";
  return plan;
}

bool FollowFindings(const v1::PreflightReport& report, InitPlan* plan) {
  // One at a time: the others may be about what it has changed.
  return std::ranges::any_of(report.findings(), [&](const v1::Finding& finding) {
    if (!finding.waived().empty()) return false;
    if (FollowHint(finding, &plan->spec)) return true;
    return finding.severity() != v1::SEVERITY_INFO && Shrink(finding.rule(), plan);
  });
}

std::string JobFileText(const InitPlan& plan, const std::vector<std::string>& heading) {
  FieldComments comments = plan.comments;
  if (plan.limited_by_data) comments["train.steps"] = PassesText(plan);
  std::string text;
  for (const std::string& line : heading) absl::StrAppend(&text, "# ", line, "\n");
  const std::vector<std::string> lines = absl::StrSplit(ToYaml(plan.spec), '\n', absl::SkipEmpty());
  std::string section;
  for (const std::string& line : lines) {
    const size_t begin = line.find_first_not_of(' ');
    std::string field = line.substr(begin, line.find(':') - begin);
    if (begin == 0) {
      section = field;
      text += "\n";
    } else {
      field = begin == 2 ? absl::StrCat(section, ".", field) : "";
    }
    text += line;
    const auto comment = comments.find(field);
    if (comment != comments.end()) absl::StrAppend(&text, "  # ", comment->second);
    text += "\n";
  }
  return text;
}

}  // namespace nsa::client
